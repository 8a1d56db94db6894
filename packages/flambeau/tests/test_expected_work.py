"""What is expected of a call from its arguments alone: on a CPU, nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau import expected_work
from flambeau_runtime import cuda


class Strange(torch.Tensor):
    """A subclass whose attributes are code of the program."""

    @classmethod
    def __torch_function__(cls, *arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("looked at")


def test_tensors_of_arguments() -> None:
    x, y = torch.randn(2), nn.Parameter(torch.randn(3))
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    strange = torch.randn(2).as_subclass(Strange)
    arguments = (x, y, [x, 1, strange], (y, "a"), {"x": x}, strange, 3, None, model, nn.ReLU())
    found = [one for argument in arguments for one in expected_work._plain_tensors(argument)]
    wanted = [x, y, x, y, model[1].weight]
    assert len(found) == len(wanted)
    assert all(one is other for one, other in zip(found, wanted, strict=True))


def test_a_program_on_a_cpu_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(device: torch.device) -> None:
        raise AssertionError(f"for {device}")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "expect_kernels", started)
    model, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), torch.randn(1, 2, 5, 5)
    with torch.no_grad():
        compiled = flambeau.compile(model, options={"graph_cache": False})
        torch.testing.assert_close(compiled(x), model(x))
