"""Products that oneDNN computes as linear layers: values and layouts, and which stay BLAS's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes import multiply_by_onednn as module
from flambeau_inductor.graph_passes.multiply_by_onednn import multiply_by_onednn
from flambeau_inductor.options import InductorOptions
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import Prim
from flambeau_prims.spec import Spec
from flambeau_runtime import load

aten = torch.ops.aten
LINEAR = "mkldnn._linear_pointwise.default"


@pytest.fixture(autouse=True)
def slow_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run on Intel's CPUs, too."""
    monkeypatch.setattr(module, "has_fast_blas", lambda: False)


def graph_of(op: Any, inputs: list[torch.Tensor], **named: Any) -> Graph:
    """A product of the inputs."""
    specs = [Spec.of(x.shape, dtype=x.dtype).replace(stride=x.stride()) for x in inputs]
    graph = Graph([Value(f"x{number}", spec) for number, spec in enumerate(specs)])
    shape = (specs[-2].shape[0], specs[-1].shape[1])
    out = Value("y", Spec.of(shape, dtype=inputs[0].dtype))
    out.producer = Node(op, tuple(graph.inputs), named, (out,), "model.py:1")
    graph.nodes.append(out.producer)
    graph.outputs = [out]
    return graph


def calls(graph: Graph) -> list[str]:
    """The library calls of a graph."""
    return [str(node.op) for node in graph.nodes if not isinstance(node.op, Prim)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [(8, 512, 512), (33, 700, 801), (100, 64, 5000)]
)
def test_values_and_layout(
    rows: int, depth: int, width: int, transposed: bool, biased: bool
) -> None:
    right = torch.randn(width, depth).t() if transposed else torch.randn(depth, width)
    inputs = [torch.randn(rows, depth), right]
    op = aten.mm.default
    if biased:
        inputs, op = [torch.randn(width), *inputs], aten.addmm.default
    graph = multiply_by_onednn(graph_of(op, inputs))
    check_graph(graph)
    assert calls(graph) == [LINEAR]
    (result,) = load(compile_graph(graph, InductorOptions(debug_checks=True)))(*inputs)
    expected, exact = op(*inputs), op(*(one.double() for one in inputs))
    assert result.stride() == expected.stride()
    assert (result - exact).norm() <= 4 * (expected - exact).norm()


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "named"),
    [
        (aten.mm.default, [(7, 512), (512, 512)], torch.float32, {}),
        (aten.mm.default, [(64, 500), (500, 500)], torch.float32, {}),
        (aten.mm.default, [(64, 512), (512, 512)], torch.bfloat16, {}),
        (aten.mm.default, [(64, 512), (512, 512)], torch.float64, {}),
        (aten.addmm.default, [(64, 1), (64, 512), (512, 512)], torch.float32, {}),
        (aten.addmm.default, [(512,), (64, 512), (512, 512)], torch.float32, {"alpha": 2}),
    ],
    ids=["few rows", "small weights", "bfloat16", "float64", "a column is added", "scaled"],
)
def test_stays_with_blas(op: Any, shapes: Any, dtype: torch.dtype, named: dict[str, Any]) -> None:
    graph = graph_of(op, [torch.randn(shape).to(dtype) for shape in shapes], **named)
    assert calls(multiply_by_onednn(graph)) == [str(op)]


def test_transposed_rows_stay_with_blas() -> None:
    inputs = [torch.randn(512, 64).t(), torch.randn(512, 512)]
    assert calls(multiply_by_onednn(graph_of(aten.mm.default, inputs))) == ["aten.mm.default"]


def test_flags_of_onednn_are_respected() -> None:
    inputs = [torch.randn(64, 512), torch.randn(512, 512)]
    with torch.backends.mkldnn.flags(enabled=False):
        graph = multiply_by_onednn(graph_of(aten.mm.default, inputs))
    assert calls(graph) == ["aten.mm.default"]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        graph = multiply_by_onednn(graph_of(aten.mm.default, inputs))
    finally:
        torch.set_float32_matmul_precision(before)
    assert calls(graph) == ["aten.mm.default"]


def test_mkl_multiplies_on_intels_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_fast_blas", lambda: True)
    inputs = [torch.randn(64, 512), torch.randn(512, 512)]
    assert calls(multiply_by_onednn(graph_of(aten.mm.default, inputs))) == ["aten.mm.default"]
