"""The page on torch.compile's interface: each argument, and the four programs in three modes (a
sine, ResNet-18, BERT, NumPy). `python -m tools.bench document` measures their speed.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import flambeau
from flambeau.report import report_of
from tools.bench.document_cases import DOCUMENT_CASES

MODES = ["default", "reduce-overhead", "max-autotune"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DOCUMENT_CASES)
def test_the_programs(name: str, mode: str) -> None:
    program = DOCUMENT_CASES[name](small=True)
    if program is None:
        pytest.skip("its package is not installed")
    fn, args = program
    compiled = flambeau.compile(fn, mode=mode)
    with torch.no_grad():
        for _ in range(2):
            found, expected = compiled(*copy.deepcopy(args)), fn(*copy.deepcopy(args))
            assert type(found) is type(expected)
            if isinstance(expected, np.ndarray):
                np.testing.assert_allclose(found, expected, rtol=1e-6)
            else:
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert len(report_of(compiled).graphs) == 1


def test_a_backend_reads_its_own_options() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.append(gm)
        return gm.forward

    compiled = flambeau.compile(torch.sin, backend=backend)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin())
    assert len(seen) == 1


def test_the_log_of_dynamic_shapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_LOGS", "dynamic")
    compiled = flambeau.compile(lambda x: x.exp(), dynamic=True)
    compiled(torch.randn(5))
    assert "flambeau [dynamic]" in capsys.readouterr().err
