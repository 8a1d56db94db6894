"""Each border between stages: its checker runs on real models, its text is dumped, and a broken
graph is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau_autograd import AutogradOptions, aot
from flambeau_capture import export
from flambeau_capture.entries import entry
from flambeau_capture.graphs.check import MalformedCapture
from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.check import GraphError, check_graph
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import ProgramError, check_program, format_program, load

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)).eval()


def functional_graphs(**options: Any) -> dict[str, Graph]:
    """What crosses the border from autograd, for a training step."""
    graphs: dict[str, Graph] = {}

    def compiler(graph: Graph, kind: str) -> Any:
        graphs[kind] = graph
        return lambda *inputs: run_graph(graph, inputs)

    x = torch.randn(4, 5)
    exported = export(model(), (x,))
    aot(
        exported.graph_module,
        exported.flat_inputs(x),
        compiler,
        options=AutogradOptions(check=True, **options),
    )
    return graphs


def test_capture_to_backend() -> None:
    x = torch.randn(4, 5)
    exported = export(model(), (x,))
    gm, examples = exported.graph_module, exported.flat_inputs(x)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    assert len(placeholders) == len(examples) == 7
    for node, example in zip(placeholders, examples, strict=True):
        assert tuple(node.meta["spec"].shape) == tuple(example.shape)
        assert node.meta["source"]
    assert all("spec" in node.meta for node in gm.graph.nodes if node.op.startswith("call"))
    assert "linear" in exported.print_readable(print_output=False)


def swap_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have capture make graphs whose output node has the wrong specs."""
    build = entry.build_graph_module

    def broken(*arguments: Any) -> Any:
        gm, inputs = build(*arguments)
        output = next(iter(reversed(gm.graph.nodes)))
        output.meta["spec"] = output.meta["spec"][::-1]
        return gm, inputs

    monkeypatch.setattr(entry, "build_graph_module", broken)


def two_results(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + 1, x.sum()


@pytest.mark.parametrize("backend", ["eager", "inductor", lambda gm, example_inputs: gm.forward])
def test_a_broken_captured_graph_is_refused(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_outputs(monkeypatch)
    with pytest.raises(MalformedCapture, match=r"output: meta\['spec'\] says"):
        flambeau.compile(two_results, backend=backend)(torch.randn(3))


def test_captured_graphs_are_checked_where_the_environment_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap_outputs(monkeypatch)
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")
    x = torch.randn(3)
    torch.testing.assert_close(flambeau.compile(two_results)(x), two_results(x))


def test_pieces_of_a_graph_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(
        "flambeau.backends.check_captured_graph", lambda gm, examples: checked.append(gm)
    )
    x = torch.tensor([1.0, 0.0, 2.0])
    program = lambda x: (x * 2 + 1)[x > 0].sin().exp()  # noqa: E731
    compiled = flambeau.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x))
    assert len(checked) > 1


def test_autograd_to_compiler() -> None:
    graphs = functional_graphs()
    assert graphs.keys() == {"forward", "backward"}
    for graph in graphs.values():
        check_graph(graph)
        assert "prims." in str(graph)


def test_a_broken_graph_is_refused() -> None:
    graph = functional_graphs()["forward"]
    graph.nodes[0], graph.nodes[-1] = graph.nodes[-1], graph.nodes[0]
    with pytest.raises(GraphError, match="before it is defined"):
        check_graph(graph)


def test_inductor_to_runtime() -> None:
    for graph in functional_graphs().values():
        program = compile_graph(graph, InductorOptions(debug_checks=True))
        check_program(program)
        assert "launch" in format_program(program)


def test_a_broken_program_is_refused() -> None:
    import dataclasses

    program = compile_graph(functional_graphs()["forward"], InductorOptions())
    with pytest.raises(ProgramError):
        check_program(dataclasses.replace(program, steps=program.steps[1:]))


def test_the_stages_agree() -> None:
    """The same graph, evaluated and compiled, on the same inputs."""
    graph = functional_graphs()["forward"]
    inputs = [
        torch.randn(tuple(value.spec.shape), dtype=value.spec.dtype) for value in graph.inputs
    ]
    expected = run_graph(graph, [value.clone() for value in inputs])
    found = load(compile_graph(graph, InductorOptions()))(*inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
