"""Kernels of a forward are built while its backward is lowered; the backward of a loss is begun
before it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau import program_compiler
from flambeau_runtime.build import cpp

OFF = {"graph_cache": False}


class Classifier(nn.Module):
    """Returns a loss and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.layers(x)
        return nn.functional.cross_entropy(scores, y), scores


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is lowered, what the compiler is given, and what waits for it, in order."""
    noted: list[str] = []
    lower, begin = program_compiler.compile_graph, cpp.begin_build

    def lowered(graph: Any, *more: Any, **keywords: Any) -> Any:
        noted.append(f"lower {graph.name}")
        return lower(graph, *more, **keywords)

    def begun(*given: Any) -> Any:
        noted.append("begin")
        paths = begin(*given)

        def wait() -> Any:
            noted.append("wait")
            return paths()

        return wait

    monkeypatch.setattr(program_compiler, "compile_graph", lowered)
    monkeypatch.setattr(cpp, "begin_build", begun)
    return noted


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(7, 6), torch.randint(0, 3, (7,))


def gradients(function: Any, model: nn.Module, given: Any, chosen: int) -> list[Any]:
    model.zero_grad()
    function(*given)[chosen].sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_the_backward_of_a_loss_is_lowered_while_kernels_of_the_forward_are_built(
    events: list[str],
) -> None:
    model, given = Classifier(), drawn()
    compiled = flambeau.compile(model, options=OFF)
    loss, _ = compiled(*given)
    assert events == ["lower forward", "begin", "lower backward_without_1", "begin", "wait"]
    (graph,) = flambeau.explain(compiled).graphs
    assert len(graph.programs) == 1, "what has not run is not reported"
    loss.backward()
    assert events[5:] == ["wait"]
    for chosen in (0, 0):
        mine = gradients(compiled, model, given, chosen)
        torch.testing.assert_close(mine, gradients(model, model, given, chosen))
    assert len(events) == 6
    (graph,) = flambeau.explain(compiled).graphs
    assert len(graph.programs) == 2


def test_another_backward_than_the_expected_one(events: list[str]) -> None:
    model, given = Classifier(), drawn()
    compiled = flambeau.compile(model, options=OFF)
    mine = gradients(compiled, model, given, 1)
    torch.testing.assert_close(mine, gradients(model, model, given, 1))
    assert events[5:] == ["lower backward_without_0", "begin", "wait"]


def test_an_expected_backward_that_cannot_be_built_runs_operator_by_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")
    model, given = Classifier(), drawn()
    compiled = flambeau.compile(model, options=OFF)
    begin, seen = program_compiler.begin_load, []

    def failing(program: Any, *more: Any) -> Any:
        seen.append(program.name)
        if len(seen) == 1:
            return begin(program, *more)

        def fail() -> Any:
            raise RuntimeError("no kernel")

        return fail

    monkeypatch.setattr(program_compiler, "begin_load", failing)
    loss, _ = compiled(*given)
    with pytest.warns(RuntimeWarning, match="no kernel"):
        loss.backward()
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    torch.testing.assert_close(mine, gradients(model, model, given, 0))
    assert len(seen) == 3
    (graph,) = flambeau.explain(compiled).graphs
    assert "no kernel" in str(graph.fallback)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_backward_that_was_begun_is_read_by_the_next_compile(
    autocast: bool, events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")  # which compiles every graph
    model, given = Classifier(), drawn()
    for _ in range(2):
        compiled = flambeau.compile(model)
        gradients = []
        for function in (compiled, model):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss, _ = function(*given)
            loss.backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        tolerance = {"atol": 2e-2, "rtol": 2e-2} if autocast else {}
        torch.testing.assert_close(*gradients, **tolerance)
    lowered = [event for event in events if event.startswith("lower")]
    assert lowered == ["lower forward", "lower backward_without_1"]
