"""Events of graphs that are launched kernel by kernel: the user's line, and each once."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import fx

import flambeau
from flambeau.plain_launches import LaunchLines, PlainLaunches, note_cuts
from flambeau.report import Report, report_of
from flambeau_prims.gpu_draws import reserve_random
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime.graph_launch.eligibility import ON_THE_CPU, Refusal

aten = torch.ops.aten


def value(name: str, device: str) -> Value:
    return Value(name, Spec.of((4,), device=device))


def graph() -> Graph:
    x, y, z, w = (value("x", "cuda:0"), value("y", "cpu"), value("z", "cuda:0"), value("w", "cpu"))
    state = value("state", "cpu")
    nodes = [
        Node(reserve_random, (4, torch.device("cuda:0")), {}, (state,), "model.py:8"),
        Node(aten.sin.default, (state,), {}, (value("d", "cuda:0"),), "model.py:9"),
        Node(aten.sin.default, (x,), {}, (z,), "model.py:10"),
        Node(aten._to_copy.default, (y,), {}, (value("c", "cuda:0"),), "model.py:11"),
        Node(aten._linalg_svd.default, (z,), {}, (value("u", "cuda:0"),), "model.py:12"),
        Node(aten._linalg_svd.default, (z,), {}, (value("v", "cuda:0"),), "model.py:13"),
        Node(aten.neg.default, (y,), {}, (w,), "model.py:14"),
    ]
    return Graph(inputs=[x, y], nodes=nodes, outputs=[w])


REASONS = {
    "model.py:11": ON_THE_CPU,
    "model.py:12": Refusal("it waits for the device", "aten._linalg_svd.U"),
    "": "recording failed: out of memory",
}


@pytest.mark.parametrize("where", REASONS)
def test_the_line_is_named(where: str, caplog: pytest.LogCaptureFixture) -> None:
    compiled = flambeau.compile(lambda x: x + 1, name="mine")
    told = PlainLaunches(report_of(compiled), LaunchLines.of(graph()))
    for _ in range(2):
        told(REASONS[where])
    place = f"{where}: " if where else ""
    text = f"{place}launched kernel by kernel, not as a CUDA graph: {REASONS[where]}"
    assert flambeau.explain(compiled).events == (f"plain_launch: {text}",)
    assert f"\nplain_launch: {text}" in str(flambeau.explain(compiled))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("flambeau.cudagraphs", logging.WARNING)
    assert record.getMessage() == f"mine: plain_launch: {text}"


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_calls_between_graphs_are_named(device: str) -> None:
    compiled = flambeau.compile(lambda x: x + 1)
    fx_graph = fx.Graph()
    x = fx_graph.placeholder("x")
    x.meta["spec"] = value("x", device).spec
    call = fx_graph.call_function(torch.nonzero, (x,))
    call.meta["where"] = "model.py:3"
    fx_graph.output((call,))
    gm = fx.GraphModule(torch.nn.Module(), fx_graph)
    for _ in range(2):
        note_cuts(report_of(compiled), gm, [call])
    text = "model.py:3: nonzero runs between CUDA graphs: what follows depends on its data"
    wanted = (f"plain_launch: {text}",) if device == "cuda:0" else ()
    assert flambeau.explain(compiled).events == wanted


def test_without_a_compiled_callable_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    told = PlainLaunches(Report("torch.compile graph"), LaunchLines.of(graph()))
    for _ in range(2):
        told(ON_THE_CPU)
    (record,) = caplog.records
    assert "torch.compile graph: plain_launch: model.py:11: launched" in record.getMessage()
