"""A module to export, and what it means that an exported graph gives the same."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    """Writes to buffers in place (BatchNorm's) and replaces one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.norm(self.linear(x))
        if mask is not None:
            y = y * mask
        self.calls = self.calls + 1
        return {"y": y, "rows": x.shape[0] * 2, "x": x}


def same(found: Any, expected: Any) -> None:
    """Equal structure, types, values, dtypes and strides."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == expected.stride()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, (list, tuple, collections.deque)):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            same(ours, theirs)
    elif hasattr(expected, "__dict__"):
        same(vars(found), vars(expected))
    else:
        assert found == expected
