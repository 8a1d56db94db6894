"""Programs that draw many numbers one by one and ask things of them: the graph so far is not run
for each question, and some draws are too many.
"""

from __future__ import annotations

import random

import pytest
import torch

import flambeau
from flambeau_capture.interpreter.branches.observation import Observation


def program(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    return x * 2, sorted([random.randrange(1000) for _ in range(count)])


def results(function: object, count: int) -> list[object]:
    random.seed(3)
    return [function(torch.ones(3), count)[1] for _ in range(3)] + [random.random()]  # type: ignore[operator]


def test_numbers_are_observed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    observe = Observation.observe

    def counting(*arguments: object) -> object:
        runs.append(1)
        return observe(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Observation, "observe", counting)
    compiled = flambeau.compile(program)
    random.seed(3)
    compiled(torch.ones(3), 60)
    assert len(runs) == 1
    assert results(compiled, 60) == results(program, 60)


def test_too_many_draws_run_eagerly() -> None:
    compiled = flambeau.compile(program)
    assert results(compiled, 5000) == results(program, 5000)
    (reason,) = flambeau.explain(compiled).breaks
    assert reason.id == "call-limit"
    assert "array or a tensor" in reason.hint
