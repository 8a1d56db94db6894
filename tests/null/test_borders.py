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
from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.check import GraphError, check_prims_graph
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import ProgramError, check_program, format_program, load

if TYPE_CHECKING:
    from pathlib import Path

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


def test_autograd_to_compiler() -> None:
    graphs = functional_graphs()
    assert graphs.keys() == {"forward", "backward"}
    for graph in graphs.values():
        check_prims_graph(graph)
        assert "prims." in str(graph)


def test_a_broken_graph_is_refused() -> None:
    graph = functional_graphs()["forward"]
    graph.nodes[0], graph.nodes[-1] = graph.nodes[-1], graph.nodes[0]
    with pytest.raises(GraphError, match="before it is defined"):
        check_prims_graph(graph)


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


def test_every_stage_is_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_DUMP", str(tmp_path))
    compiled = flambeau.compile(lambda x: torch.sin(x) + 1, name="dumped")
    compiled(torch.randn(3))
    texts = {path.name.partition(".")[2]: path.read_text() for path in tmp_path.iterdir()}
    assert "torch.sin" in texts["capture.txt"]
    assert "prims.sin" in texts["inference.inference.graph.txt"]
    assert "launch" in texts["inference.inference.program.txt"]
