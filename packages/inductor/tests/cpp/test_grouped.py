"""Products of rows in groups, each by its own matrix, in one kernel."""

from __future__ import annotations

import dataclasses

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
from flambeau_runtime import load
from flambeau_runtime.tuning.cpu_bench import CpuBench

aten = torch.ops.aten
ENDS = [[5, 5, 40, 64], [0, 0, 0, 64], [64, 64, 64, 64], [1, 2, 3, 64]]


def exact_of(x: torch.Tensor, w: torch.Tensor, ends: list[int]) -> torch.Tensor:
    bounds = [0, *ends]
    parts = [
        x[a:b].double() @ each.double()
        for a, b, each in zip(bounds[:-1], bounds[1:], w, strict=True)
    ]
    return torch.cat(parts).relu()


@pytest.mark.parametrize("frozen", [(), (1,)], ids=["", "frozen"])
@pytest.mark.parametrize("layout", ["lanes", "depth"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_rows_in_groups(dtype: torch.dtype, layout: str, frozen: tuple[int, ...]) -> None:
    x = torch.randn(64, 304).to(dtype)
    w = torch.randn(4, 304, 72) if layout == "lanes" else torch.randn(4, 72, 304).transpose(1, 2)
    w = w.to(dtype)
    product = Product(x, w, torch.tensor(ENDS[0], dtype=torch.int32), frozen=frozen)
    y = product.call(aten._grouped_mm.default, *product.graph.inputs)
    product.graph.outputs = [relu_of(product, y)]
    names = check_ways(product, exact_of(x, w, ENDS[0]), PRECISION[dtype])
    assert any("dots" in name for name in names) == (layout == "depth" and not frozen)
    for name, program in product.programs():
        run = load(program, run_cpp.OPTIONS)
        for ends in ENDS[1:]:
            (result,) = run(x, w, torch.tensor(ends, dtype=torch.int32))
            assert error(result, exact_of(x, w, ends)) <= PRECISION[dtype], (name, ends)


def test_ends_out_of_bounds_touch_no_other_memory() -> None:
    """Eager cuts what is there, too."""
    x, w = torch.randn(24, 32), torch.randn(3, 32, 48)
    product = Product(x, w, torch.tensor([5, 5, 24], dtype=torch.int32))
    product.graph.outputs = [product.call(aten._grouped_mm.default, *product.graph.inputs)]
    for name, program in product.programs():
        if "cpp" not in name:
            continue
        run = load(program, run_cpp.OPTIONS)
        for ends in ([5, 90, 24], [-7, 10, 24], [5, 10, 1 << 30], [9, 4, 24]):
            (result,) = run(x, w, torch.tensor(ends, dtype=torch.int32))
            assert result.shape == (24, 48), name
        (result,) = run(x, w, torch.tensor([5, 90, 24], dtype=torch.int32))
        assert error(result, torch.cat((x[:5] @ w[0], x[5:] @ w[1])).double()) <= PRECISION[F32]


def test_batches() -> None:
    x, w = torch.randn(3, 20, 48).to(BF16), torch.randn(3, 48, 40).to(BF16)
    product = Product(x, w)
    product.graph.outputs = [product.call(aten._grouped_mm.default, *product.graph.inputs)]
    check_ways(product, x.double() @ w.double(), PRECISION[BF16])


@pytest.mark.parametrize("threads", [1, 3])
def test_symbolic_rows(threads: int) -> None:
    env = SizeEnv()
    rows = env.symbol(40, "rows")
    inputs = [
        Value("x", Spec.of((rows, 48), dtype=F32)), Value("w", Spec.of((3, 48, 56), dtype=F32)),
        Value("ends", Spec.of((3,), dtype=torch.int32)),
    ]  # fmt: skip
    product = Product()
    product.graph = graph = Graph(inputs, env=env)
    value = Value("y", Spec.of((rows, 56), dtype=F32))
    value.producer = Node(aten._grouped_mm.default, tuple(inputs), {}, (value,), "")
    graph.nodes, graph.outputs = [value.producer], [value]
    w = torch.randn(3, 48, 56)
    own = CpuBench(run_cpp.OPTIONS).facts("cpu")
    assert own is not None
    names = []
    for name, program in product.programs(dataclasses.replace(own, threads=threads)):
        run = load(program, run_cpp.OPTIONS)
        names.append(name)
        for size in (1, 15, 333):
            x, ends = torch.randn(size, 48), [size // 4, size // 2, size]
            (result,) = run(x, w, torch.tensor(ends, dtype=torch.int32))
            exact = torch.cat(
                [part.double() @ each.double()
                 for part, each in zip(x.tensor_split(ends[:2]), w, strict=True)]
            )  # fmt: skip
            assert error(result, exact) <= PRECISION[F32], (name, size)
    assert any("cpp" in name for name in names)


def test_groups_of_columns_stay_the_librarys() -> None:
    x, w = torch.randn(16, 48), torch.randn(48, 32)
    product = Product(x, w, torch.tensor([16, 48], dtype=torch.int32))
    product.graph.outputs = [product.call(aten._grouped_mm.default, *product.graph.inputs)]
    tuner = Every(0)
    compile_graph(product.graph, OPTIONS, tuner=tuner)
    assert not tuner.names


@pytest.mark.parametrize(("rows", "few"), [(16, True), (0, True), (17, False)])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_few_rows_without_measuring(rows: int, few: bool, dtype: torch.dtype) -> None:
    """Dot products of rows, if the matrices lie as linear layers have them."""
    x, w = torch.randn(rows, 304).to(dtype), torch.randn(4, 72, 304).transpose(1, 2).to(dtype)
    ends = [rows // 4, rows // 4, rows // 2, rows]
    product = Product(x, w, torch.tensor(ends, dtype=torch.int32))
    y = product.call(aten._grouped_mm.default, *product.graph.inputs)
    product.graph.outputs = [relu_of(product, y)]
    facts = CpuBench(run_cpp.OPTIONS).facts
    program = compile_graph(product.graph, OPTIONS, facts=facts)
    assert any("multiply_dots" in one.text for one in program.sources) == (few and rows > 0)
    (result,) = load(program, run_cpp.OPTIONS)(x, w, torch.tensor(ends, dtype=torch.int32))
    assert result.shape == (rows, 72)
    if rows:
        assert error(result, exact_of(x, w, ends)) <= PRECISION[dtype]
    strict = dataclasses.replace(OPTIONS, numerics="strict")
    assert "multiply_dots" not in str(compile_graph(product.graph, strict, facts=facts).sources)
