"""Products by quantised weights, dequantised lane by lane: integers, groups, numbers in a byte."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable
from typing import Any

import pytest
import run_cpp
import torch
from product_ways import BF16, F16, F32, OPTIONS, PRECISION, Product, check_ways, error

from flambeau_inductor import compile_graph
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime import check_program, load
from flambeau_runtime.build import isa
from flambeau_runtime.program import Extern
from flambeau_runtime.tuning.contest import CpuFacts
from flambeau_runtime.tuning.cpu_bench import CpuBench

aten = torch.ops.aten

Weights = tuple[list[torch.Tensor], Callable[[Builder, list[Value]], Value], torch.Tensor]
"""The stored tensors, the graph that makes a weight of them, and the weight."""


def whole(lanes: int, depth: int, dtype: torch.dtype) -> Weights:
    """Int8 and a scale for each lane."""
    q = torch.randint(-128, 128, (lanes, depth), dtype=torch.int8)
    scale = torch.rand(lanes, 1)

    def build(builder: Builder, inputs: list[Value]) -> Value:
        factor = builder.mul(builder.cast(inputs[0], F32), builder.expand(inputs[1], q.shape))
        return factor if dtype is F32 else builder.cast(factor, dtype)

    return [q, scale], build, (q.float() * scale).to(dtype)


def unscaled(lanes: int, depth: int, dtype: torch.dtype) -> Weights:
    """Int8, converted; scales come behind the product."""
    q = torch.randint(-128, 128, (lanes, depth), dtype=torch.int8)
    return [q], lambda builder, inputs: builder.cast(inputs[0], dtype), q.to(dtype)


def grouped(lanes: int, depth: int, dtype: torch.dtype) -> Weights:
    """Uint8, a scale and a zero point in uint8 for each group of 32."""
    q = torch.randint(0, 256, (lanes, depth // 32, 32), dtype=torch.uint8)
    scale = torch.rand(lanes, depth // 32, 1)
    zero = torch.randint(0, 256, (lanes, depth // 32, 1), dtype=torch.uint8)

    def build(builder: Builder, inputs: list[Value]) -> Value:
        number, step, middle = inputs
        middle = builder.expand(builder.cast(middle, F32), q.shape)
        factor = builder.sub(builder.cast(number, F32), middle)
        factor = builder.mul(factor, builder.expand(step, q.shape))
        factor = factor if dtype is F32 else builder.cast(factor, dtype)
        return builder.reshape(factor, (lanes, depth))

    weight = (q.float() - zero.float()) * scale
    return [q, scale, zero], build, weight.reshape(lanes, depth).to(dtype)


def bytes_of(lanes: int, depth: int, dtype: torch.dtype, group: int = 64) -> Weights:
    """Two numbers a byte; 8 is subtracted in int8, whose products with 16 overflow."""
    q = torch.randint(0, 256, (lanes, depth // 2, 1), dtype=torch.uint8)
    scale = torch.rand(lanes, depth // group, 1)

    def build(builder: Builder, inputs: list[Value]) -> Value:
        stored, step = inputs
        low = builder.bitwise_and(stored, 15)
        high = builder.shift_right(stored, builder.full(q.shape, 4, torch.uint8, q.device))
        digits = builder.cat((low, high), 2)
        number = builder.sub(builder.cast(digits, torch.int8), 8)
        number = builder.mul(number, builder.full(number.spec.shape, 16, torch.int8, q.device))
        factor = builder.reshape(builder.cast(number, F32), (lanes, depth // group, group))
        factor = builder.mul(factor, builder.expand(step, factor.spec.shape))
        factor = factor if dtype is F32 else builder.cast(factor, dtype)
        return builder.reshape(factor, (lanes, depth))

    digits = torch.cat((q & 15, q >> 4), 2).to(torch.int8)
    number = ((digits - 8) * 16).float().reshape(lanes, depth // group, group)
    return [q, scale], build, (number * scale).reshape(lanes, depth).to(dtype)


FORMS = {"whole": whole, "unscaled": unscaled, "grouped": grouped, "bytes": bytes_of}


def product_of(
    form: str, rows: int, lanes: int, depth: int, dtype: torch.dtype
) -> tuple[Product, torch.Tensor]:
    """Tanh of a product by such a weight, and the exact result."""
    stored, build, weight = FORMS[form](lanes, depth, dtype)
    x = (torch.randn(rows, depth) / depth / weight.double().std()).to(dtype)
    product = Product(x, *stored)
    left, *inputs = product.graph.inputs
    builder = product.builder
    factor = build(builder, inputs)
    y = product.call(aten.mm.default, left, builder.permute(factor, (1, 0)))
    product.graph.outputs = [builder.cast(builder.tanh(builder.cast(y, F32)), F32)]
    return product, (x.double() @ weight.double().t()).tanh()


SHAPES = ((1, 70, 128), (5, 33, 1344), (20, 101, 704))
"""Rows, lanes and depths: each with every form and every dtype, not with all pairs of these."""


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("form", FORMS)
def test_every_way(form: str, turn: int) -> None:
    dtype = (F32, BF16, F16)[turn]
    shape = SHAPES[(turn + list(FORMS).index(form)) % len(SHAPES)]
    product, exact = product_of(form, *shape, dtype)
    names = check_ways(product, exact, PRECISION[dtype])
    assert any("dots computed" in name for name in names), names
    kernels = {name: len(program.kernels) for name, program in product.programs()}
    assert all(count == 1 for name, count in kernels.items() if "dots computed" in name)


@pytest.mark.parametrize("level", ["avx512", "avx2", "baseline"])
@pytest.mark.parametrize(
    "facts", [CpuFacts(2, 64, 32, 1, 4, True), CpuFacts(3, 32, 16, 2), CpuFacts(1, 16, 16, 2)]
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_every_level(facts: CpuFacts, level: str, dtype: torch.dtype) -> None:
    """A level that the machine lacks is compiled only."""
    if platform.machine() != "x86_64":
        pytest.skip("levels of x86-64")
    product, exact = product_of("bytes", 3, 70, 192, dtype)
    wanted = {"avx512": isa.AVX512, "avx2": isa.AVX2, "baseline": ()}[level]
    own = [p for name, p in product.programs(facts) if "dots computed" in name]
    (program,) = own
    run = load(program, dataclasses.replace(run_cpp.OPTIONS, isa=level))
    if isa.cpu_flags().issuperset(wanted):
        assert error(run(*product.tensors)[0], exact) <= PRECISION[dtype]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("has_unit", [False, True], ids=["", "unit"])
@pytest.mark.parametrize("rows", [1, 7, 16, 17])
@pytest.mark.parametrize("form", FORMS)
def test_few_rows_dequantise_without_measuring(
    form: str, rows: int, has_unit: bool, dtype: torch.dtype
) -> None:
    product, exact = product_of(form, rows, 512, 640, dtype)
    options = dataclasses.replace(OPTIONS, max_autotune_gemm=False)
    known = CpuBench(run_cpp.OPTIONS).facts("cpu")
    assert known is not None
    known = dataclasses.replace(known, multiplies_bfloat16=has_unit)
    program = compile_graph(product.graph, options, facts=lambda _: known)
    check_program(program)
    most = 7 if has_unit and dtype is BF16 and form != "bytes" else 16
    assert any(isinstance(step, Extern) for step in program.steps) == (rows > most)
    assert error(load(program, run_cpp.OPTIONS)(*product.tensors)[0], exact) <= PRECISION[dtype]


def test_special_scales() -> None:
    """A scale of NaN or infinity stays in its lane."""
    stored, build, _ = whole(40, 96, F32)
    stored[1][3], stored[1][7] = torch.nan, torch.inf
    x = torch.randn(4, 96)
    product = Product(x, *stored)
    left, *inputs = product.graph.inputs
    builder = product.builder
    factor = builder.permute(build(builder, inputs), (1, 0))
    product.graph.outputs = [product.call(aten.mm.default, left, factor)]
    expected = x @ (stored[0].float() * stored[1]).t()

    def finite(t: torch.Tensor) -> Any:
        return torch.isfinite(t)

    for name, program in product.programs():
        (result,) = load(program, run_cpp.OPTIONS)(*product.tensors)
        assert torch.equal(finite(result), finite(expected)), name
        torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("rows", [1, 6, 21])
def test_the_operator_with_int8_weights(rows: int, dtype: torch.dtype) -> None:
    """With tanh in the same kernel; the left factor is a part of wider rows."""
    x = torch.randn(rows, 700).to(dtype)[:, 60:700]
    q, scale = torch.randint(-128, 128, (512, 640), dtype=torch.int8), torch.rand(512).to(dtype)
    scale /= 2000
    product = Product(x, q, scale)
    builder = product.builder
    y = Value("y", Spec.of((rows, 512), dtype=dtype))
    op, inputs = aten._weight_int8pack_mm.default, tuple(product.graph.inputs)
    y.producer = Node(op, inputs, {}, (y,), "")
    product.graph.nodes.append(y.producer)
    product.graph.outputs = [builder.tanh(builder.cast(y, F32))]
    exact = (x.double() @ q.double().t() * scale.double()).tanh()
    if dtype is BF16:  # ATen's kernel may end the process: it is not run
        assert [name for name, _ in product.programs()] == [""]
    else:
        names = check_ways(product, exact, PRECISION[dtype])
        assert names[0].startswith("aten._weight_int8pack_mm") and len(names) == 2
    options = dataclasses.replace(OPTIONS, max_autotune_gemm=False)
    known = CpuBench(run_cpp.OPTIONS).facts("cpu")
    assert known is not None
    known = dataclasses.replace(known, multiplies_bfloat16=False)
    program = compile_graph(product.graph, options, facts=lambda _: known)
    is_extern = any(isinstance(step, Extern) for step in program.steps)
    assert is_extern == (rows > 16)
    if is_extern and dtype is BF16:
        return
    assert error(load(program, run_cpp.OPTIONS)(x, q, scale)[0], exact) <= PRECISION[dtype]
