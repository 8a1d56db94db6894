"""Matrix products of our own on a CPU: each way to compute one, as its Program, beside float64."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable
from typing import Any

import pytest
import run_cpp
import torch
from product_ways import (
    BF16,
    F16,
    F32,
    OPTIONS,
    PRECISION,
    Every,
    Product,
    check_ways,
    error,
    relu_of,
)

from flambeau_inductor import compile_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import check_program, load
from flambeau_runtime.build import isa
from flambeau_runtime.program import Extern
from flambeau_runtime.tuning.contest import CpuFacts
from flambeau_runtime.tuning.cpu_bench import CpuBench

aten = torch.ops.aten


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize(
    ("rows", "depth", "lanes"), [(64, 16, 32), (1, 300, 70), (7, 517, 101), (70, 640, 33)]
)
def test_linear_and_relu(
    rows: int, depth: int, lanes: int, dtype: torch.dtype, frozen: bool
) -> None:
    torch.manual_seed(rows)
    x, w, bias = torch.randn(rows, depth), torch.randn(lanes, depth), torch.randn(lanes)
    x, w, bias = x.to(dtype), w.to(dtype), bias.to(dtype)
    product = Product(x, w, bias, frozen=(1, 2) if frozen else ())
    a, b, c = product.graph.inputs
    y = product.call(aten.addmm.default, c, a, product.builder.permute(b, (1, 0)))
    product.graph.outputs = [relu_of(product, y)]
    exact = (x.double() @ w.double().t() + bias.double()).relu()
    names = check_ways(product, exact, PRECISION[dtype])
    assert any("dots" in name for name in names) == (rows < 8 and not frozen)
    prepared = [program.prepared is not None for _, program in product.programs()]
    assert any(prepared) == frozen


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_products_of_batches(dtype: torch.dtype) -> None:
    x, w = torch.randn(5, 23, 48).to(dtype), torch.randn(5, 48, 50).to(dtype)
    product = Product(x, w)
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.bmm.default, a, b)]
    check_ways(product, x.double() @ w.double(), PRECISION[dtype])


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("lanes", [31, 32, 64])
def test_a_left_factor_that_all_products_of_a_batch_share(lanes: int, frozen: bool) -> None:
    x, w = torch.randn(20, 17).expand(3, 20, 17), torch.randn(3, 17, lanes)
    product = Product(x, w, frozen=(1,) if frozen else ())
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.bmm.default, a, b)]
    for name, program in product.programs():
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, x.double() @ w.double()) <= PRECISION[F32], name


@pytest.mark.parametrize(("rows", "depth", "lanes"), [(1, 32, 1), (3, 4, 1), (1, 1, 1), (1, 5, 3)])
def test_batches_of_vectors(rows: int, depth: int, lanes: int) -> None:
    x, w = torch.randn(5, rows, depth), torch.randn(5, depth, lanes)
    product = Product(x, w)
    a, b = product.graph.inputs
    product.graph.outputs = [relu_of(product, product.call(aten.bmm.default, a, b))]
    for name, program in product.programs():
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, (x.double() @ w.double()).relu()) <= PRECISION[F32], name


def test_factors_of_many_layouts() -> None:
    width, memory = 40, torch.randn(90, 200)
    layouts: list[Callable[[], tuple[torch.Tensor, torch.Tensor]]] = [
        lambda: (memory[:31, :60], memory[:60, 100 : 100 + width]),
        lambda: (memory[:60, :31].t(), memory[:60, :width]),
        lambda: (memory[::2, 1:121:2], memory[:60, : 2 * width : 2]),
        lambda: (memory[:9, 7:67], memory[:width, 3:63].t()),
    ]
    for layout in layouts:
        x, w = layout()
        product = Product(x, w)
        a, b = product.graph.inputs
        product.graph.outputs = [product.call(aten.mm.default, a, b)]
        check_ways(product, x.double() @ w.double(), PRECISION[F32])


def test_integers_are_exact() -> None:
    for rows, depth, lanes in ((24, 64, 40), (19, 65, 33), (1, 3, 5), (1, 1030, 70), (70, 1025, 9)):
        x = torch.randint(-128, 128, (rows, depth), dtype=torch.int8)
        w = torch.randint(-128, 128, (depth, lanes), dtype=torch.int8)
        for right in (w, w.t().contiguous().t()):
            product = Product(x, right)
            a, b = product.graph.inputs
            product.graph.outputs = [product.call(aten._int_mm.default, a, b)]
            check_ways(product, x.double() @ w.double(), 0.0)


VECTORS_OF_INTEGERS = {
    "avx512": CpuFacts(2, 64, 32, 1, 4, multiplies_int8=True),
    "avx2": CpuFacts(3, 32, 16, 2, 4, multiplies_int8=True),
    "plain": CpuFacts(1, 16, 16, 2, 4, multiplies_int8=True),
    "without": CpuFacts(1, 64, 32, 1, 4),
}


@pytest.mark.parametrize("level", ["avx512", "avx2", "baseline"])
@pytest.mark.parametrize("facts", VECTORS_OF_INTEGERS)
def test_int8_products_with_an_epilogue_at_every_level(facts: str, level: str) -> None:
    """Extremes too: a sum of two products of bytes fits no int16. A level that the machine lacks is
    compiled only.
    """
    known = VECTORS_OF_INTEGERS[facts]
    x = torch.randint(-128, 128, (37, 131), dtype=torch.int8)
    w = torch.randint(-128, 128, (70, 131), dtype=torch.int8)
    x[:3], w[:, ::2], w[5] = -128, 127, -128
    scale, bias = torch.rand(70), torch.randn(70)
    product = Product(x, w, scale, bias, frozen=(1,))
    a, b, c, d = product.graph.inputs
    builder = product.builder
    y = product.call(aten._int_mm.default, a, builder.permute(b, (1, 0)))
    scaled = builder.mul(builder.cast(y, F32), builder.expand(c, (37, 70)))
    product.graph.outputs = [builder.tanh(builder.add(scaled, builder.expand(d, (37, 70))))]
    exact = ((x.double() @ w.double().t()) * scale.double() + bias.double()).tanh()
    own = [(n, p) for n, p in product.programs(known) if "cpp_packed_gemm" in n]
    assert known.multiplies_int8 == any("bytes" in name for name, _ in own)
    flags = isa.cpu_flags()
    wanted = {"avx512": isa.AVX512, "avx2": isa.AVX2, "baseline": ()}[level]
    if platform.machine() != "x86_64":
        pytest.skip("levels of x86-64")
    for name, program in own[:1]:
        options = dataclasses.replace(run_cpp.OPTIONS, isa=level)
        run = load(program, options)
        if flags.issuperset(wanted):
            assert error(run(x, w, scale, bias)[0], exact) <= PRECISION[F32], name


@pytest.mark.parametrize(
    ("flags", "level"),
    [("-mavx512vnni", "avx512"), ("-mavxvnni", "avx2"), ("-mamx-int8", "avx512")],
)
def test_int8_units_compile(flags: str, level: str) -> None:
    """What is built for a unit runs where there is one."""
    width = 64 if level == "avx512" else 32
    facts = CpuFacts(2, width, 32, 1, 4, multiplies_int8=True, has_int8_tiles="amx" in flags)
    x = torch.randint(-128, 128, (70, 100), dtype=torch.int8)
    w = torch.randint(-128, 128, (100, 96), dtype=torch.int8)
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten._int_mm.default, a, b)]
    names = {name: program for name, program in product.programs(facts) if "bytes" in name}
    by_unit = {name: each for name, each in names.items() if "tiles" in name}
    assert bool(by_unit) == ("amx" in flags)
    if platform.machine() != "x86_64":
        pytest.skip("instructions of x86-64")
    options = dataclasses.replace(
        run_cpp.OPTIONS, cxx_flags=(*isa.compiler_flags(level), flags), isa=level
    )
    has_unit = flags[2:].replace("avx512", "avx512_").replace("avxv", "avx_v").replace("-", "_")
    for name, program in (by_unit or names).items():
        run = load(program, options)
        if has_unit in isa.cpu_flags():
            assert error(run(x, w)[0], x.double() @ w.double()) == 0, name
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, x.double() @ w.double()) == 0, name


@pytest.mark.parametrize("rows", [1, 4, 5, 70])
@pytest.mark.parametrize("frozen", [(), (1,)], ids=["", "frozen"])
def test_int8_products_are_ours_without_measuring(rows: int, frozen: tuple[int, ...]) -> None:
    """Where a unit multiplies integers; one kernel for the product and what follows."""
    x = torch.randint(-128, 128, (rows, 131), dtype=torch.int8)
    w = torch.randint(-128, 128, (70, 131), dtype=torch.int8)
    product = Product(x, w, frozen=frozen)
    a, b = product.graph.inputs
    builder = product.builder
    y = product.call(aten._int_mm.default, a, builder.permute(b, (1, 0)))
    product.graph.outputs = [builder.tanh(builder.mul(builder.cast(y, F32), 1e-4))]
    exact = ((x.double() @ w.double().t()) * 1e-4).tanh()
    options = dataclasses.replace(OPTIONS, max_autotune_gemm=False)
    plain = CpuBench(run_cpp.OPTIONS).facts("cpu")
    assert plain is not None
    for has_unit in (True, False):
        known = dataclasses.replace(plain, multiplies_int8=has_unit)
        program = compile_graph(product.graph, options, facts=lambda _, known=known: known)
        check_program(program)
        assert any(isinstance(step, Extern) for step in program.steps) != has_unit
        assert error(load(program, run_cpp.OPTIONS)(x, w)[0], exact) <= PRECISION[F32]


def test_a_factor_and_what_follows_join_the_product() -> None:
    x, w, residual = torch.randn(50, 96), torch.randn(96, 80), torch.randn(50, 80)
    product = Product(x.to(BF16), w.to(BF16), residual)
    a, b, c = product.graph.inputs
    builder = product.builder
    left = builder.cast(builder.tanh(builder.cast(a, F32)), BF16)
    y = product.call(aten.mm.default, left, b)
    product.graph.outputs = [builder.add(builder.cast(y, F32), c)]
    exact = x.to(BF16).float().tanh().to(BF16).double() @ w.to(BF16).double() + residual.double()
    check_ways(product, exact, PRECISION[BF16])
    kernels = {name: len(program.kernels) for name, program in product.programs()}
    assert (
        min(count for name, count in kernels.items() if "unpacked" in name or "copied" in name) == 1
    )


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_weights_of_integers_join_the_product(dtype: torch.dtype) -> None:
    x, w = torch.randn(10, 96).to(dtype), torch.randint(-128, 128, (70, 96), dtype=torch.int8)
    scale = torch.rand(70, 1)
    product = Product(x, w, scale)
    a, b, c = product.graph.inputs
    builder = product.builder
    factor = builder.mul(builder.cast(b, F32), builder.expand(c, (70, 96)))
    factor = builder.cast(factor, dtype) if dtype is not F32 else factor
    product.graph.outputs = [product.call(aten.mm.default, a, builder.permute(factor, (1, 0)))]
    exact = x.double() @ (w.float() * scale).to(dtype).double().t()
    check_ways(product, exact, PRECISION[dtype])
    launched = [len(program.kernels) for name, program in product.programs() if "cpp" in name]
    assert min(launched) == 1


def test_results_in_other_layouts() -> None:
    """Heads: the consumer splits and permutes the lanes."""
    x, w = torch.randn(2 * 24, 64), torch.randn(64, 96)
    product = Product(x, w)
    a, b = product.graph.inputs
    builder = product.builder
    y = product.call(aten.mm.default, a, b)
    heads = builder.permute(builder.reshape(y, (2, 24, 4, 24)), (0, 2, 1, 3))
    product.graph.outputs = [builder.clone(builder.exp(builder.mul(heads, 0.1)))]
    exact = (x.double() @ w.double() * 0.1).exp().reshape(2, 24, 4, 24).permute(0, 2, 1, 3)
    check_ways(product, exact, PRECISION[F32])


def test_special_values_stay_in_their_rows_and_columns() -> None:
    x, w = torch.randn(20, 33), torch.randn(33, 37)
    x[3, 5], x[7, 1], w[2, 36] = torch.nan, torch.inf, -torch.inf
    product = Product(x, w)
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.mm.default, a, b)]
    for _, program in product.programs():
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        torch.testing.assert_close(result, x @ w, equal_nan=True)


@pytest.mark.parametrize("dtype", [F32, torch.int8], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_symbolic_rows(dtype: torch.dtype, threads: int) -> None:
    env = SizeEnv()
    rows = env.symbol(40, "rows")
    graph = Graph(
        [Value("x", Spec.of((rows, 47), dtype=dtype)), Value("w", Spec.of((47, 56), dtype=dtype))],
        env=env,
    )
    product = Product()
    product.graph, a = graph, graph.inputs
    total, op = (F32, aten.mm.default) if dtype is F32 else (torch.int32, aten._int_mm.default)
    value = Value("y", Spec.of((rows, 56), dtype=total))
    value.producer = Node(op, tuple(a), {}, (value,), "")
    graph.nodes, graph.outputs = [value.producer], [value]

    def numbers(*shape: int) -> torch.Tensor:
        if dtype is F32:
            return torch.randn(shape)
        return torch.randint(-128, 128, shape, dtype=dtype)

    w = numbers(47, 56)
    own = CpuBench(run_cpp.OPTIONS).facts("cpu")
    facts = dataclasses.replace(own, threads=threads, multiplies_int8=True)
    for name, program in product.programs(facts):
        run = load(program, run_cpp.OPTIONS)
        for size in (2, 15, 40, 333):
            x = numbers(size, 47)
            (result,) = run(x, w)
            allowed = PRECISION.get(dtype, 0.0)
            assert error(result, x.double() @ w.double()) <= allowed, (name, size)


def test_frozen_factors_are_packed_again_when_they_change() -> None:
    x, w = torch.randn(24, 64), torch.randn(64, 96)
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.mm.default, a, b)]
    for name, program in product.programs():
        run = load(program, run_cpp.OPTIONS)
        for change in (lambda: None, w.zero_, w.normal_, lambda: None):
            change()
            assert error(run(x, w)[0], x.double() @ w.double()) <= PRECISION[F32], name
        other = torch.randn(64, 96)
        assert error(run(x, other)[0], x.double() @ other.double()) <= PRECISION[F32], name
        w.data = torch.randn(64, 96)
        assert error(run(x, w)[0], x.double() @ w.double()) <= PRECISION[F32], name


def test_the_library_is_first_and_packed_by_onednn_where_that_is_fast() -> None:
    x, w = torch.randn(24, 64), torch.randn(96, 64)
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    y = product.call(aten.mm.default, a, product.builder.permute(b, (1, 0)))
    product.graph.outputs = [y]
    names = [name for name, _ in product.programs()]
    assert names[:2] == ["mkldnn._linear_pointwise", "aten.mm.out"]
    with torch.backends.mkldnn.flags(enabled=False):
        assert not any("mkldnn" in name for name, _ in product.programs())


@pytest.mark.parametrize(
    "facts", [CpuFacts(4, 64, 32, 1, 4, True), CpuFacts(3, 32, 16, 2), CpuFacts(1, 16, 16, 2)]
)
@pytest.mark.parametrize("dtype", [F32, BF16, F16, torch.int8], ids=str)
def test_vectors_of_any_width_compile_for_this_machine(facts: CpuFacts, dtype: torch.dtype) -> None:
    """The text for one machine is right on another: only slower."""
    if dtype is torch.int8:
        x = torch.randint(-9, 9, (21, 34), dtype=dtype)
        w = torch.randint(-9, 9, (34, 45), dtype=dtype)
    else:
        x, w = torch.randn(21, 34).to(dtype), torch.randn(34, 45).to(dtype)
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    op = aten._int_mm.default if dtype is torch.int8 else aten.mm.default
    product.graph.outputs = [product.call(op, a, b)]
    programs = [p for name, p in product.programs(facts) if "cpp_packed_gemm" in name]
    (result,) = load(programs[0], run_cpp.OPTIONS)(x, w)
    assert error(result, x.double() @ w.double()) <= PRECISION.get(dtype, 0.0)


@pytest.mark.parametrize(("rows", "depth", "lanes"), [(64, 64, 64), (100, 200, 96), (37, 517, 101)])
def test_tile_unit(rows: int, depth: int, lanes: int) -> None:
    """What is built for a tile unit runs where there is one; without one its text multiplies by
    vectors.
    """
    facts = CpuFacts(2, 64, 32, 1, 4, True, True)
    x, w = torch.randn(rows, depth).bfloat16(), torch.randn(depth, lanes).bfloat16()
    product = Product(x, w, frozen=(1,))
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.mm.default, a, b)]
    by_unit = [program for name, program in product.programs(facts) if "tiles" in name]
    assert by_unit
    flags = (*isa.compiler_flags("avx512"), "-mavx512bf16", "-mamx-bf16")
    for program in by_unit:
        (result,) = load(program, run_cpp.OPTIONS)(x, w)
        assert error(result, x.double() @ w.double()) <= PRECISION[BF16]
        if platform.machine() == "x86_64":
            run = load(program, dataclasses.replace(run_cpp.OPTIONS, cxx_flags=flags))
            if {"amx_bf16", *isa.AVX512} <= isa.cpu_flags():
                assert error(run(x, w)[0], x.double() @ w.double()) <= PRECISION[BF16]


def test_long_sums_are_no_farther_from_exact_ones_than_eager() -> None:
    x, w = torch.randn(16, 4096), torch.randn(4096, 64)
    product = Product(x, w)
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.mm.default, a, b)]
    exact = x.double() @ w.double()
    check_ways(product, exact, 2 * error(x @ w, exact))


def test_switches() -> None:
    x, w = torch.randn(24, 64), torch.randn(64, 96)
    product = Product(x, w)
    a, b = product.graph.inputs
    product.graph.outputs = [product.call(aten.mm.default, a, b)]

    def names(**changes: Any) -> list[str]:
        tuner = Every(0)
        compile_graph(product.graph, dataclasses.replace(OPTIONS, **changes), tuner=tuner)
        return tuner.names

    assert names()[0] == "aten.mm.out" and len(names()) > 1
    assert not names(max_autotune_gemm=False)
    libraries = {"aten.mm.out", "mkldnn._linear_pointwise"}
    assert set(names(max_autotune_gemm_backends="ATEN")) <= libraries
    only = names(max_autotune_gemm_backends="CPP")
    assert only and all(name.startswith("cpp_packed_gemm") for name in only)
    program = compile_graph(
        product.graph, dataclasses.replace(OPTIONS, max_autotune_gemm_backends="CPP"),
        tuner=Every(0),
    )  # fmt: skip
    assert not any(isinstance(step, Extern) for step in program.steps)
