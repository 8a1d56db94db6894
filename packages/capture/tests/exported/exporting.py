"""A module to export, and what it means that an exported graph gives the same."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from tests import same as comparison

same = functools.partial(comparison.same, tolerance=0)  # an exported graph runs eager's kernels


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
