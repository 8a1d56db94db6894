"""The list of passes on graphs: order, checks, and that it is used."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph, pipeline
from flambeau_inductor.check import BorderError
from flambeau_inductor.pipeline import run_passes
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec
from flambeau_runtime import load

CHECKED = InductorOptions(debug_checks=True)


def sine() -> Graph:
    graph = Graph([Value("x", Spec.of((4,)))])
    builder = Builder(graph.nodes, ["x"])
    graph.outputs = [builder.sin(graph.inputs[0])]
    return graph


def negated(graph: Graph) -> Graph:
    """The graph with its result negated."""
    changed = Graph(graph.inputs, list(graph.nodes))
    builder = Builder(changed.nodes, ["x", *(str(out) for n in graph.nodes for out in n.outputs)])
    changed.outputs = [builder.neg(graph.outputs[0])]
    return changed


def reversed_nodes(graph: Graph) -> Graph:
    """The graph with its nodes in an order in which they cannot run."""
    return Graph(graph.inputs, graph.nodes[::-1], graph.outputs)


def test_passes_run_in_order() -> None:
    ran: list[str] = []

    def noting(name: str) -> tuple[str, pipeline.GraphPass]:
        def run(graph: Graph) -> Graph:
            ran.append(name)
            return graph

        return name, run

    graph = sine()
    assert run_passes(graph, CHECKED, [noting("first"), noting("second")]) is graph
    assert ran == ["first", "second"]


def test_the_list_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4)
    (before,) = load(compile_graph(sine(), CHECKED))(x)
    monkeypatch.setattr(pipeline, "GRAPH_PASSES", (("negated", negated),))
    (after,) = load(compile_graph(sine(), CHECKED))(x)
    assert torch.equal(after, -before)


def test_the_pass_that_breaks_a_graph_is_named() -> None:
    passes = [("negated", negated), ("reversed_nodes", reversed_nodes)]
    with pytest.raises(
        BorderError, match=r"after the pass reversed_nodes: .* before it is defined"
    ):
        run_passes(sine(), CHECKED, passes)
    run_passes(sine(), InductorOptions(), passes)  # checks cost nothing where nobody asks


def test_a_broken_graph_is_refused_before_the_first_pass() -> None:
    with pytest.raises(BorderError, match=r"^\S+ is read before it is defined"):
        run_passes(reversed_nodes(negated(sine())), CHECKED, [("negated", negated)])
