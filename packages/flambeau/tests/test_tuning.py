"""Who measures kernels: a tuner where the options ask for one, with a bench for each device."""

from __future__ import annotations

import pytest
import torch

from flambeau.backends import Context, tuner_of
from flambeau.environment import Environment
from flambeau.options import MODES, Options, resolve
from flambeau.report import Report
from flambeau_runtime.tuning.tuner import MeasuringTuner


def context(mode: str, logs: frozenset[str] = frozenset(), **options: object) -> Context:
    environment = Environment(logs=logs)
    resolved: Options = resolve(
        fullgraph=False, dynamic=None, mode=None if options else mode, options=options or None,
        environment=environment,
    )  # fmt: skip
    return Context(resolved, Report("test"))


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    tuner = tuner_of(context(mode))
    assert (tuner is not None) == mode.startswith("max-autotune")
    if isinstance(tuner, MeasuringTuner):
        assert set(tuner.benches) == ({"cpu", "cuda"} if gpu else {"cpu"})


@pytest.mark.parametrize(
    "option", ["max_autotune", "max_autotune_gemm", "max_autotune_pointwise",
               "coordinate_descent_tuning"],
)  # fmt: skip
def test_options(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tuner = tuner_of(context("", **{option: True, "max_autotune_seconds": 7.0}))
    assert isinstance(tuner, MeasuringTuner) and tuner.seconds == 7.0
    assert tuner_of(context("", **{option: False})) is None


@pytest.mark.parametrize("logs", [frozenset(), frozenset({"autotune"})])
def test_tables_are_written_once(
    logs: frozenset[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tuner = tuner_of(context("max-autotune", logs))
    assert isinstance(tuner, MeasuringTuner)
    tuner.report("AUTOTUNE mm(4x4, 4x4)")
    assert capsys.readouterr().err.count("AUTOTUNE mm(4x4, 4x4)\n") == 1
