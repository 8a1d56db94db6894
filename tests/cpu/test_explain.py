"""explain: graphs, breaks, guards, recompilations, seconds, caches and fallbacks, as an object,
text and JSON; and logs of the same.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau.environment import LOG_TOPICS
from flambeau_autograd.reasons import LeafInside

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stages

FACTOR = 2


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return (x * FACTOR).sin() + 1


def branch(x: torch.Tensor) -> torch.Tensor:
    y = x.cos()
    if y.sum().item() > 0:
        return y + 1
    return y - 1


def either(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x.cos()


def makes_a_leaf(x: torch.Tensor) -> torch.Tensor:
    """What the compiler behind the capture refuses."""
    return torch.ones(3, requires_grad=True) * x


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"test_explain.py:{function.__code__.co_firstlineno + offset}"


# One call
# ----------------------------------------------------------------------------


def test_one_graph() -> None:
    x = torch.randn(3, 4)
    report = flambeau.explain(pointwise)(x)
    torch.testing.assert_close(report.result, pointwise(x))
    (graph,) = report.graphs
    assert not report.breaks and not report.recompiles
    assert (graph.calls, graph.nodes) == (3, 5)
    assert "sin" in graph.code
    assert len(graph.kernels) == 1 and graph.fallback is None and graph.ends == ""
    assert set(graph.seconds) == {"capture", "autograd", "inductor", "build"}
    assert all(value >= 0 for value in graph.seconds.values())
    assert report.seconds >= sum(graph.seconds.values()) * 0.5


def test_guards_say_what_they_protect_and_where_it_was_read() -> None:
    (graph,) = flambeau.explain(pointwise, backend="eager")(torch.randn(3)).graphs
    about = {guard.protects: guard for guard in graph.guards}
    assert about["L['x']"].kind == "TENSOR"
    factor = about["G['FACTOR']"]
    assert factor.where.endswith(line_of(pointwise, 1))
    assert str(factor) == f"{factor.text} (read at {factor.where})"
    assert factor.text == "G['FACTOR'] == 2"


def test_breaks_have_lines_ids_and_hints() -> None:
    x = torch.randn(5)
    report = flambeau.explain(branch, backend="eager")(x)
    torch.testing.assert_close(report.result, branch(x))
    (reason,) = report.breaks
    assert reason.id == "data-dependent"
    assert reason.where.endswith(line_of(branch, 2))
    assert "torch.where" in reason.hint
    assert len(report.graphs) == 2
    assert report.graphs[0].ends.endswith(f"{line_of(branch, 2)} [data-dependent]")
    assert all(part in str(report) for part in (reason.cause, reason.hint, "2 graphs, 1 break"))


def test_assumptions_have_lines() -> None:
    report = flambeau.explain(either, backend="eager")(torch.ones(3))
    (graph,) = report.graphs
    (assumption,) = graph.assumes
    assert line_of(either, 1) in assumption and "True" in assumption
    assert assumption in str(report) and not report.breaks
    after = report(-torch.ones(3))
    (recompile,) = after.recompiles
    assert recompile.failures[0].kind == "ASSUMPTION"
    assert recompile.failures[0].source.endswith(line_of(either, 1))
    assert not after.breaks, "the other way has a graph, too"
    again = after(torch.ones(3))
    assert [reason.id for reason in again.breaks] == ["data-dependent"]


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_a_fallback_says_why() -> None:
    report = flambeau.explain(makes_a_leaf)(torch.ones(3))
    fallback = report.graphs[0].fallback
    assert fallback is not None and fallback.reason == "leaf-made-inside"
    assert f"runs eagerly: {fallback.text} [leaf-made-inside]" in str(report)
    assert LeafInside.hint in str(report)


def test_the_cache_is_accounted_for() -> None:
    program = lambda x: (x * 1.41421).exp() - x  # noqa: E731
    x = torch.randn(11)
    (first,) = flambeau.explain(program)(x).graphs
    (second,) = flambeau.explain(program)(x).graphs
    assert (first.cache_hits, first.cache_misses) == (0, 1)
    assert (second.cache_hits, second.cache_misses) == (1, 0)


def test_training_has_the_kernels_of_both_graphs() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    report = flambeau.explain(lambda x: x.sin().exp().sum(0))(x)
    report.result.sum().backward()
    assert len(report.graphs[0].kernels) >= 2


def test_each_call_of_aten_has_a_reason() -> None:
    def program(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ x) @ x, torch.special.airy_ai(x), z * 2

    z = torch.randn(2, dtype=torch.complex64)
    report = flambeau.explain(program)(torch.randn(3, 3), z)
    externs = {extern.operator: extern for extern in report.graphs[0].externs}
    assert externs.keys() == {"aten.mm.out", "aten.special_airy_ai.default", "aten.mul.Tensor"}
    product = externs["aten.mm.out"]
    assert product.calls == 2 and product.reason.startswith("matrix product")
    assert externs["aten.special_airy_ai.default"].reason.startswith("special function")
    assert externs["aten.mul.Tensor"].reason == "kernels do not compute in complex64"
    assert "    aten.mm.out (2 calls): matrix product" in str(report)
    (told,) = json.loads(report.to_json())["graphs"]
    assert len(told["externs"]) == 3
    assert flambeau.explain(pointwise)(torch.randn(3)).graphs[0].externs == ()


def test_what_the_backward_recomputes_is_one_line() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin().exp().sum()

    tensors = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    lines = {}
    for partition in ("min_cut", "save_all"):
        report = flambeau.explain(program, options={"partition": partition})(*tensors)
        (lines[partition],) = report.graphs[0].partitions
        assert f"\n  backward: {lines[partition]}\n" in str(report)
    assert lines["min_cut"] == "saves 1 tensor (256 bytes), recomputes 2 calls (1 sin, 1 exp)"
    assert lines["save_all"] == "saves 2 tensors (512 bytes), recomputes 0 calls"
    assert flambeau.explain(pointwise)(torch.randn(3)).graphs[0].partitions == ()


# A running callable
# ----------------------------------------------------------------------------


def test_what_happened_to_a_compiled_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = flambeau.compile(pointwise, backend="eager", name="mine")
    before = flambeau.explain(compiled)
    assert (before.name, before.graphs, before.result) == ("mine", (), None)
    compiled(torch.randn(3))
    compiled(torch.randn(3, 2))
    monkeypatch.setitem(globals(), "FACTOR", 5)
    compiled(torch.randn(3))
    report = flambeau.explain(compiled)
    assert len(report.graphs) == 3
    shape, factor = report.recompiles
    assert "had [3]" in shape.failures[0].found and shape.failures[0].source == "L['x']"
    failure = next(one for one in factor.failures if one.kind == "EQUALS")
    assert (failure.source, failure.expected, failure.found) == (
        "G['FACTOR']",
        "== 2",
        "is 5, was 2",
    )
    assert failure.where.endswith(line_of(pointwise, 1))
    assert "G['FACTOR'] is 5, was 2 (read at" in str(report)


def test_calling_an_explanation_goes_on() -> None:
    report = flambeau.explain(pointwise, backend="eager")(torch.randn(3))
    x = torch.randn(4)
    more = report(x)
    torch.testing.assert_close(more.result, pointwise(x))
    assert len(more.graphs) == 2 and len(more.recompiles) == 1
    assert len(report.graphs) == 1, "an Explanation does not change"


def test_modules_and_methods() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    compiled = flambeau.compile(model, backend="eager")
    x = torch.randn(2, 3)
    compiled(x)
    assert flambeau.explain(compiled).graphs[0].calls == 2
    method = flambeau.compile(model.forward, backend="eager")
    method(x)
    assert len(flambeau.explain(method).graphs) == 1
    in_place = flambeau.compile_in_place(model, backend="eager")
    in_place(x)
    assert len(flambeau.explain(in_place._compiled_call_impl).graphs) == 1


def test_the_limit_and_stances_are_events() -> None:
    compiled = flambeau.compile(
        lambda x, flag: x + len(flag), backend="eager", recompile_limit=2, dynamic=False
    )
    x = torch.randn(3)
    with pytest.warns(RuntimeWarning, match="recompile_limit"):
        for count in range(4):
            torch.testing.assert_close(compiled(x, "a" * count), x + count)
    report = flambeau.explain(compiled)
    assert [event.partition(":")[0] for event in report.events] == ["capture", "recompile", "limit"]
    assert report.breaks[-1].id == "recompile-limit"
    with flambeau.compiler.set_stance("eager_on_recompile"):
        other = flambeau.compile(pointwise)
        other(x)
    assert "the stance is 'eager_on_recompile'" in flambeau.explain(other).events[0]


def test_reset_forgets() -> None:
    compiled = flambeau.compile(pointwise, backend="eager")
    compiled(torch.randn(3))
    flambeau.reset()
    assert not flambeau.explain(compiled).events


# Forms
# ----------------------------------------------------------------------------


def test_json_holds_all_but_the_result() -> None:
    compiled = flambeau.compile(branch, backend="eager")
    for size in (3, 4, 5):
        compiled(torch.randn(size))
    report = flambeau.explain(compiled)
    data = json.loads(report.to_json(indent=1))
    assert set(data) == {
        "name",
        "graphs",
        "breaks",
        "recompiles",
        "events",
        "seconds",
        "tables",
        "timeline",
    }
    assert data["breaks"][0]["id"] == "data-dependent"
    assert data["graphs"][0]["guards"][0]["text"]
    assert data["recompiles"][0]["failures"][0]["source"] == "L['x']"
    assert data["graphs"][0]["seconds"].keys() == {"capture", "backend"}


def test_bad_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = flambeau.compile(pointwise, backend="eager")
    with pytest.raises(ValueError, match="backend cannot be given"):
        flambeau.explain(compiled, backend="eager")
    monkeypatch.setenv("FLAMBEAU_DISABLE", "1")
    with pytest.raises(ValueError, match="compiling is disabled"):
        flambeau.explain(pointwise)(torch.randn(3))


# Logs
# ----------------------------------------------------------------------------


def run_all_sorts() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flambeau.compile(makes_a_leaf)(torch.ones(3))
    compiled = flambeau.compile(pointwise)
    compiled(torch.randn(3))
    compiled(torch.randn(3, 2))
    flambeau.compile(pointwise, dynamic=True)(torch.randn(3))
    flambeau.compile(branch, backend="aot_eager")(torch.randn(3))


ON_A_CPU = tuple(topic for topic in LOG_TOPICS if topic not in ("autotune", "cudagraphs"))
"""What is measured and chosen on a GPU has its topic there (tests/gpu)."""


@pytest.mark.parametrize("topic", ON_A_CPU)
def test_one_topic(topic: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", topic)
    run_all_sorts()
    written = capfd.readouterr().err
    assert f"flambeau [{topic}]" in written
    assert not any(f"flambeau [{other}]" in written for other in set(LOG_TOPICS) - {topic})
    wanted = {
        "captures": "capture: pointwise",
        "fallbacks": " [leaf-made-inside]",
        "perf_hints": " [leaf-made-inside] (runs eagerly)",
        "recompiles": "L['x'] has shape [3, 2], had [3]",
        "graph_breaks": line_of(branch, 2),
        "guards": "G['FACTOR'] == 2 (read at",
        "graph_code": 'def forward(self, x: "f32[3',
        "output_code": "sin",
        "schedule": "kernel cpu (",
        "dynamic": "pointwise: x: f32[s0]",
    }
    assert wanted[topic] in written


def test_topics_by_torchs_names(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("TORCH_LOGS", "+dynamo,-inductor,kernel_code,onnx")
    run_all_sorts()
    topics = set(re.findall(r"flambeau \[(\w+)\]", capfd.readouterr().err))
    assert topics == {"captures", "output_code"}


def test_topics_are_chosen_by_a_call(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "guards")
    with pytest.raises(ValueError, match="set_logs names unknown topics: grphs; known: autotune"):
        flambeau.compiler.set_logs(grphs=True)
    flambeau.compiler.set_logs(graph_breaks=True, recompiles=logging.DEBUG, dynamic=False)
    try:
        run_all_sorts()
    finally:
        flambeau.compiler.set_logs()
    topics = set(re.findall(r"flambeau \[(\w+)\]", capfd.readouterr().err))
    assert topics == {"graph_breaks", "recompiles"}
    run_all_sorts()
    assert set(re.findall(r"flambeau \[(\w+)\]", capfd.readouterr().err)) == {"guards"}


def test_graphs_for_backends_from_elsewhere_are_written(
    monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "graph_code")
    flambeau.compile(pointwise, backend=lambda gm, inputs: gm.forward, name="mine")(torch.randn(3))
    assert "flambeau [graph_code] mine" in capfd.readouterr().err


def test_nothing_is_written_unasked(capfd: Any) -> None:
    run_all_sorts()
    captured = capfd.readouterr()
    assert "flambeau" not in captured.err + captured.out


def test_all_topics_and_unknown_ones(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "all")
    run_all_sorts()
    written = capfd.readouterr().err
    assert all(f"flambeau [{topic}]" in written for topic in ON_A_CPU)
    monkeypatch.setenv("FLAMBEAU_LOGS", "recompiles, graphbreaks")
    with pytest.raises(ValueError, match=r"unknown topics: graphbreaks; known: .*graph_breaks"):
        flambeau.compile(pointwise)


def test_pythons_logging_gets_them_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flambeau"):
        run_all_sorts()
    assert {record.name for record in caplog.records} == {f"flambeau.{name}" for name in ON_A_CPU}
