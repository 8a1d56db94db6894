"""The log topic `perf_hints`: why a graph is slower than it might be, in words and with lines."""

from __future__ import annotations

import pytest
import torch

import flambeau
from flambeau.logs import MANY_RECOMPILES


def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.special.airy_ai(x).sin().sum(0)
    return y, x.t().contiguous()


def hints(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("flambeau [perf_hints] ")]


def test_calls_copies_and_fusions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "perf_hints")
    x = torch.rand(6, 9)
    torch.testing.assert_close(flambeau.compile(program, name="p")(x), program(x))
    found = hints(capsys)
    line = program.__code__.co_firstlineno
    (call,) = [hint for hint in found if "aten.special_airy_ai.default is not fused" in hint]
    assert call.startswith("flambeau [perf_hints] p: ") and f"{__file__}:{line + 1}" in call
    (copy,) = [hint for hint in found if "only copies" in hint]
    assert "432 bytes" in copy and f"{__file__}:{line + 2}" in copy


def test_a_fused_program_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "perf_hints")
    flambeau.compile(lambda x: (x.sin() + 1).exp())(torch.rand(5))
    assert hints(capsys) == []


def test_many_recompiles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LOGS", "perf_hints")
    compiled = flambeau.compile(lambda x, mode: x + len(mode), backend="eager")
    for number in range(MANY_RECOMPILES + 1):
        compiled(torch.ones(2), "m" * (number + 1))
    (hint,) = hints(capsys)
    assert f"recompiled {MANY_RECOMPILES} times, now because L['mode']" in hint
