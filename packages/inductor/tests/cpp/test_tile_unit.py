"""Products by a CPU's tile unit, beside float64: the unit where there is one, vectors elsewhere."""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from product_ways import BF16, F32, PRECISION, Product, error, relu_of

from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import load
from flambeau_runtime.build import isa
from flambeau_runtime.program import Program
from flambeau_runtime.tuning.contest import CpuFacts

aten = torch.ops.aten

UNIT = CpuFacts(2, 64, 32, 1, 4, True, True, True, True)

DTYPES = pytest.mark.parametrize("dtype", [BF16, torch.int8], ids=str)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random ones; extremes among those of int8."""
    if dtype is BF16:
        return torch.randn(shape).bfloat16()
    return torch.randint(-128, 128, shape, dtype=dtype)


def product_of(dtype: torch.dtype) -> object:
    """The operator that multiplies matrices of a dtype."""
    return aten._int_mm.default if dtype is torch.int8 else aten.mm.default


def by_unit(product: Product, threads: int = 1, least: int = 1) -> list[tuple[str, Program]]:
    """The ways by the tile unit."""
    facts = dataclasses.replace(UNIT, threads=threads)
    ways = [(name, each) for name, each in product.programs(facts) if "tiles" in name]
    assert len(ways) >= least
    return ways


@DTYPES
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "lanes"),
    [(4, 64, 2), (16, 64, 64), (17, 65, 33), (32, 128, 32), (41, 300, 161), (64, 192, 65),
     (65, 64, 2000), (130, 131, 70)],
)  # fmt: skip
def test_sizes(rows: int, depth: int, lanes: int, frozen: bool, dtype: torch.dtype) -> None:
    x, w = numbers(dtype, rows, depth), numbers(dtype, depth, lanes)
    product = Product(x, w, frozen=(1,) if frozen else ())
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(product_of(dtype), a, b)]
    least = int(rows > 4 or frozen)  # else dot products read the right factor as it lies
    for name, program in by_unit(product, least=least):
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, x.double() @ w.double()) <= PRECISION.get(dtype, 0.0), name


@pytest.mark.parametrize("level", ["avx512", "avx2", "baseline"])
@DTYPES
def test_the_text_is_right_without_a_unit(dtype: torch.dtype, level: str) -> None:
    if not isa.cpu_flags().issuperset(
        {"avx512": isa.AVX512, "avx2": isa.AVX2, "baseline": ()}[level]
    ):
        pytest.skip(f"no {level} here")
    x, w = numbers(dtype, 37, 131), numbers(dtype, 131, 70)
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(product_of(dtype), a, b)]
    options = dataclasses.replace(run_cpp.OPTIONS, isa=level)
    plain = dataclasses.replace(
        options, cxx_flags=("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
    )
    for name, program in by_unit(product):
        for each in (options, plain) if level == "avx512" else (options,):
            (result,) = load(program, each)(x, w)
            assert error(result, x.double() @ w.double()) <= PRECISION.get(dtype, 0.0), name


@DTYPES
def test_epilogues_of_blocks_that_are_behind(dtype: torch.dtype) -> None:
    """A residual, a scale and a bias of the lanes, a mean of the row; and heads of permuted lanes,
    in two results.
    """
    rows, depth, lanes = 2 * 37, 160, 4 * 36
    x, w, residual = (
        numbers(dtype, rows, depth),
        numbers(dtype, depth, lanes),
        torch.randn(rows, lanes),
    )
    scale, bias, shift = torch.rand(lanes) * 1e-2, torch.randn(lanes), torch.randn(rows, 1)
    product = Product(x, w, residual, scale, bias, shift, frozen=(1,))
    a, b, c, d, e, f = product.graph.inputs
    builder, shape = product.builder, (rows, lanes)
    y = builder.cast(product.call(product_of(dtype), a, b), F32)
    y = builder.add(builder.mul(y, builder.expand(d, shape)), builder.expand(e, shape))
    y = builder.tanh(builder.add(builder.add(y, c), builder.expand(f, shape)))
    heads = builder.permute(builder.reshape(y, (2, 37, 4, 36)), (0, 2, 1, 3))
    product.graph.outputs = [builder.clone(heads)]
    exact = x.double() @ w.double()
    exact = exact.to(BF16).double() if dtype is BF16 else exact
    exact = (exact * scale.double() + bias.double() + residual.double() + shift.double()).tanh()
    exact = exact.reshape(2, 37, 4, 36).permute(0, 2, 1, 3)
    for name, program in by_unit(product, threads=3):
        (result,) = load(program, run_cpp.OPTIONS)(*product.tensors)
        assert error(result, exact) <= PRECISION[F32 if dtype is torch.int8 else BF16], name


@DTYPES
@pytest.mark.parametrize("threads", [1, 3])
def test_symbolic_rows(dtype: torch.dtype, threads: int) -> None:
    env = SizeEnv()
    rows = env.symbol(400, "rows")
    graph = Graph(
        [
            Value("x", Spec.of((rows, 128), dtype=dtype)),
            Value("w", Spec.of((128, 200), dtype=dtype)),
        ],
        env=env,
    )
    product = Product()
    product.graph = graph
    total = torch.int32 if dtype is torch.int8 else dtype
    value = Value("y", Spec.of((rows, 200), dtype=total))
    value.producer = Node(product_of(dtype), tuple(graph.inputs), {}, (value,), "")
    graph.nodes, graph.outputs = [value.producer], [value]
    w = numbers(dtype, 128, 200)
    for name, program in by_unit(product, threads):
        run = load(program, run_cpp.OPTIONS)
        for size in (0, 1, 2, 15, 33, 64, 777):
            x = numbers(dtype, size, 128)
            (result,) = run(x, w)
            assert result.shape == (size, 200)
            assert error(result, x.double() @ w.double()) <= PRECISION.get(dtype, 0.0), (name, size)


def test_batches_and_computed_factors() -> None:
    x, w = torch.randn(5, 23, 96).to(BF16), torch.randn(5, 96, 50).to(BF16)
    product = Product(x, w)
    a, b = product.graph.inputs
    builder = product.builder
    left = builder.cast(builder.tanh(builder.cast(a, F32)), BF16)
    product.graph.outputs = [relu_of(product, product.call(aten.bmm.default, left, b))]
    exact = (x.float().tanh().to(BF16).double() @ w.double()).relu()
    for name, program in by_unit(product):
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, exact) <= PRECISION[BF16], name


@pytest.mark.parametrize("depth", [2048, 2050, 5000])
def test_long_sums_are_sums_of_sums(depth: int) -> None:
    """As near the exact ones as float32 sums of shorter pieces are."""
    x, w = torch.randn(20, depth).to(BF16), torch.rand(depth, 40).to(BF16)
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    y = product.call(aten.mm.default, a, b)
    product.graph.outputs = [y]
    exact = x.double() @ w.double()
    for name, program in by_unit(product):
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, exact) <= 1.1 * error(exact.to(BF16), exact), name


def test_values_beside_the_last_number_are_not_read() -> None:
    """A row that ends inside a block of the unit's: what follows may be NaN."""
    memory = torch.full((20, 200), torch.nan, dtype=BF16)
    x, w = memory[:, :70], torch.randn(70, 40).to(BF16)
    x.copy_(torch.randn(20, 70))
    product = Product(x, w)
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.mm.default, a, b)]
    for name, program in by_unit(product):
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, x.double() @ w.double()) <= PRECISION[BF16], name
