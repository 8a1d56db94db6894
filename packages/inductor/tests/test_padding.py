"""A cat of a large computed part and a small one: written part by part, beside the mask."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.lowering import realize
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec
from flambeau_runtime import load


def padded_softmax(
    rows: int, columns: int, more: int, dim: int, device: str = "cpu"
) -> tuple[Graph, list[torch.Tensor]]:
    """softmax(x) with zeros beside it or below it, and what it was before them."""
    place = torch.device(device)
    graph = Graph([Value("x", Spec.of((rows, columns), device=place))])
    b = Builder(graph.nodes, ["x"])
    (x,) = graph.inputs
    shape = (rows, columns)
    e = b.exp(b.sub(x, b.expand(b.unsqueeze(b.amax(x, (1,)), 1), shape)))
    y = b.div(e, b.expand(b.unsqueeze(b.sum(e, (1,)), 1), shape))
    rest = (rows, more) if dim else (more, columns)
    out = b.cat([y, b.full(rest, 0.5, torch.float32, place)], dim)
    graph.outputs = [out, b.sum(out, (0,))]
    return graph, [torch.randn(rows, columns)]


@pytest.mark.parametrize(
    ("rows", "columns", "more", "dim"),
    [(40, 77, 3, 1), (40, 77, 2, 0), (1, 64, 1, 1), (33, 50, 0, 1), (3, 16, 2, 1)],
)
def test_parts(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, more: int, dim: int
) -> None:
    monkeypatch.setattr(realize, "PADDED_DEVICES", {"cpu"})
    monkeypatch.setattr(realize, "FEWEST_PADDED", 64)
    graph, tensors = padded_softmax(rows, columns, more, dim)
    expected = run_graph(graph, tensors)
    found = load(compile_graph(graph, InductorOptions(debug_checks=True)))(*tensors)
    torch.testing.assert_close(found, expected)


def test_a_gpu_computes_a_row_once() -> None:
    graph, _ = padded_softmax(8192, 50257, 47, 1, "cuda")
    graph.outputs = graph.outputs[:1]
    program = compile_graph(graph)
    assert "sum" in program.kernels[0].name and "cat" in program.kernels[0].name
    small, _ = padded_softmax(8, 16, 3, 1, "cuda")
    small.outputs = small.outputs[:1]
    assert "cat" not in compile_graph(small).kernels[0].name


def repeated_bytes(computed: bool) -> tuple[Graph, list[torch.Tensor]]:
    """Each byte twice, with margins on one side and on the other, compared: as max pooling reads
    the places of its maxima.
    """
    graph = Graph([Value("x", Spec.of((4, 9, 30), dtype=torch.int8))])
    b = Builder(graph.nodes, ["x"])
    (x,) = graph.inputs
    if computed:
        x = b.cast(b.add(b.cast(x, torch.int32), 1), torch.int8)
    twice = b.reshape(b.expand(b.unsqueeze(x, 2), (4, 9, 2, 30)), (4, 18, 30))
    left, right = (b.pad(twice, low, high, -1)
                   for low, high in (((0, 1, 0), (0, 0, 0)), ((0, 0, 0), (0, 1, 0))))  # fmt: skip
    graph.outputs = [b.eq(left, right)]
    return graph, [torch.randint(-3, 3, (4, 9, 30), dtype=torch.int8)]


@pytest.mark.parametrize("computed", [False, True])
def test_bytes_that_are_only_moved_are_not_copied(computed: bool) -> None:
    graph, tensors = repeated_bytes(computed)
    program = compile_graph(graph, InductorOptions(debug_checks=True))
    assert len(program.kernels) == 1 + computed
    (result,) = load(program)(*tensors)
    assert torch.equal(result, run_graph(graph, tensors)[0])
