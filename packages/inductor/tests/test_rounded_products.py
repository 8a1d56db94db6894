"""Which products kernels for GPUs round before a sum reads them. No GPU needed: Triton's texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.builder import Builder
from flambeau_prims.decompositions.reduction import variance
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec

Build = Callable[[Builder, Value, Value, Value], Value]
SHAPE = (6, 33)


def text_of(
    build: Build, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float32,
    options: InductorOptions | None = None,
) -> str:  # fmt: skip
    """The sources of the kernels of a result."""
    specs = [Spec.of(size, dtype=dtype, device=torch.device("cuda:0")) for size in (shape,) * 3]
    graph = Graph([Value(name, spec) for name, spec in zip("xyz", specs, strict=True)])
    graph.outputs = [build(Builder(graph.nodes, "xyz"), *graph.inputs)]
    program = compile_graph(graph, options or InductorOptions())
    return "\n".join(source.text for source in program.sources)


def less_row(b: Builder, product: Value, row: Value) -> Value:
    """The product less one number of each row."""
    return b.sub(product, b.spread(row, (1,), product.spec.shape))


CANCELLING = {
    "greatest": lambda b, x, y, z: less_row(b, (p := b.mul(x, y)), b.amax(p, (1,))),
    "mean": lambda b, x, y, z: less_row(b, (p := b.mul(x, y)), b.div(b.sum(p, (1,)), 33.0)),
    "scan": lambda b, x, y, z: b.sub(b.cumsum(p := b.mul(x, y), 1, False), p),
    "pointwise": lambda b, x, y, z: b.sub(p := b.mul(x, y), b.maximum(p, z)),
    "negated": lambda b, x, y, z: b.add(b.neg(p := b.mul(x, y)), b.maximum(p, z)),
    "two": lambda b, x, y, z: b.sub(b.mul(x, y), b.mul(y, x)),
}
CONTRACTED = {
    "bias": lambda b, x, y, z: b.add(b.mul(x, y), z),
    "norm": lambda b, x, y, z: b.sqrt(b.sum(b.mul(x, x), (1,))),
    "read twice": lambda b, x, y, z: b.mul(b.add(p := b.mul(x, y), z), b.sub(p, 1.0)),
    "row of another": lambda b, x, y, z: less_row(b, b.mul(x, y), b.amax(z, (1,))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_is_rounded(name: str, dtype: torch.dtype) -> None:
    kind = "f64" if dtype is torch.float64 else "f32"
    assert f"mul.rn.{kind} " in text_of(CANCELLING[name], dtype=dtype)
    strict = InductorOptions(numerics="strict")
    assert "mul.rn" not in text_of(CANCELLING[name], dtype=dtype, options=strict)


@pytest.mark.parametrize("name", CONTRACTED)
def test_other_products_are_contracted(name: str) -> None:
    assert "mul.rn" not in text_of(CONTRACTED[name])


def test_integers_are_left_alone() -> None:
    assert "mul.rn" not in text_of(CANCELLING["two"], dtype=torch.int32)


@pytest.mark.parametrize("cancels", [True, False])
def test_products_that_an_earlier_kernel_computed(cancels: bool) -> None:
    """A long row is reduced in parts; a kernel behind them computes the product once more."""

    def build(b: Builder, x: Value, y: Value, z: Value) -> Value:
        product = b.mul(x, y)
        _, mean = variance(b, product if cancels else z, (1,), 0)
        return less_row(b, product, mean)

    last = text_of(build, (3, 20000)).rpartition("@triton.jit")[2]
    assert ("mul.rn.f32" in last) is cancels
