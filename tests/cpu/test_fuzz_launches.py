"""Trials of what users do around compiled calls, and that a defect in a launch is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tools.fuzz.launches import check, trial
from tools.fuzz.launches.side import Side
from tools.fuzz.launches.trial import Trial, drawn, run, shortened

if TYPE_CHECKING:
    from random import Random


@pytest.mark.parametrize("seed", [3, 8])
def test_trials_equal_eager(seed: int) -> None:
    assert run(drawn(seed)).difference is None


def test_a_trial_is_read_as_it_was_written() -> None:
    assert Trial.read(str(drawn(5))) == drawn(5)


@pytest.fixture
def overwriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled sides return the same memory from each call, as CUDA graphs may."""
    call = Side.call
    memory: dict[torch.Size, torch.Tensor] = {}

    def overwrite(side: Side, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = call(side, x)
        if side.run is side.model:
            return result
        result = result.detach()
        return memory.setdefault(result.shape, result).copy_(result)

    monkeypatch.setattr(Side, "call", overwrite)


def test_overwritten_outputs_are_found(overwriting: None) -> None:
    actions = ("seed", 1), ("infer", 2), ("hold_outputs", 7), ("infer", 4), ("infer_often", 4)
    given = Trial(0, "default", "Small", 0.0, autocast=False, actions=actions)
    difference = run(given).difference
    assert difference is not None
    assert "held outputs" in difference.text
    short, same = shortened(given, difference, 60)
    assert same.text.startswith(difference.text.split(":")[0])
    assert len(short.actions) < len(actions)
    assert run(short).difference is not None


def test_another_error_and_another_random_state_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def fails_once(side: Side, random: Random) -> list[Any]:
        if next(calls) == 1:
            raise ValueError("the second call")
        return []

    def draws_once(side: Side, random: Random) -> list[Any]:
        if next(calls) == 3:
            torch.rand(2)
        return []

    monkeypatch.setitem(trial.ACTIONS, "fails_once", fails_once)
    monkeypatch.setitem(trial.ACTIONS, "draws_once", draws_once)
    for name, text in (
        ("fails_once", "ValueError: the second call, not a result"),
        ("draws_once", "the generator has another state"),
    ):
        given = Trial(0, "default", "Small", 0.0, autocast=False, actions=((name, 0),))
        difference = run(given).difference
        assert difference is not None
        assert text in difference.text


def test_a_crash_costs_one_trial(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sitecustomize.py"
    package.write_text(
        "import sys\n"
        "if '-m' in sys.orig_argv and 'tools.fuzz.launches.process' in sys.orig_argv:\n"
        "    import json, os\n"
        "    for seed in sys.orig_argv[3:]:\n"
        "        print(json.dumps({'begins': f'trial {seed}'}), flush=True)\n"
        "        if seed == '1':\n"
        "            os._exit(7)\n"
        "        print(json.dumps({'seed': int(seed), 'differs': '', 'replays': 2}), flush=True)\n"
        "    os._exit(0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = check.check(range(4), 1)
    assert (found.equal, found.replayed) == (3, 3)
    (text,) = found.differences
    assert text.startswith("the process of seed 1 ended with 7")
    assert text.endswith("trial 1")
