"""Indices of Python numbers, tensors of the CPU beside tensors of a GPU, empty reductions: as
eager.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.differential import differences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def written(x: torch.Tensor, *keys: Any) -> torch.Tensor:
    y = x.clone()
    for number, key in enumerate(keys):
        y[key] = float(number)
    return y


PROGRAMS = {
    "list": lambda x: x[[1, 2, 3]],
    "range": lambda x: x[range(3)],
    "empty list": lambda x: x[[]],
    "list in a tuple": lambda x: (x[:, [0, 1]], x[0, (1, 2)], x[[0, 1], :, None], x[..., [1]]),
    "mask list": lambda x: x[[True, False] * 4],
    "CPU index": lambda x: (x[torch.tensor([1, 2])], x[torch.tensor([1, 2]), torch.tensor([0, 1])]),
    "CPU mask": lambda x: x[torch.tensor([True, False] * 4)],
    "both": lambda x: x[torch.tensor([1, 2], device="cuda"), [0, 1]],
    "writes": lambda x: written(x, [1, 2], torch.tensor([3]), ([0], [1]), [True, False] * 4),
    "CPU scalars": lambda x: (x + torch.tensor(2.0), torch.maximum(x, torch.tensor(0.0))),
    "clamp refuses": lambda x: x.clamp(torch.tensor(0.0)),
    "take refuses": lambda x: x.take(torch.tensor([1])),
    "gather refuses": lambda x: x.gather(0, torch.zeros(1, 8, dtype=torch.long)),
    "index_select refuses": lambda x: x.index_select(0, torch.tensor([1])),
    "cat refuses": lambda x: torch.cat([x, torch.ones(8, 8)]),
    "embedding refuses": lambda x: F.embedding(torch.tensor([1]), x),
    "copied": lambda x: (
        x.select_scatter(torch.ones(8), 0, 1),
        x.slice_scatter(torch.ones(2, 8), 0, 1, 3),
        x.diagonal_scatter(torch.ones(8)),
    ),
    "masked_fill refuses": lambda x: x.masked_fill(torch.ones(8, 8) > 0, 1.0),
    "mse_loss refuses": lambda x: F.mse_loss(x, torch.ones(8, 8)),
    "where refuses": lambda x: torch.where(torch.ones(8, 8) > 0, x, x),
    "empty reductions": lambda x: (x[:0].sum(), x[:0].prod(), x[:, :0].sum(1), (x[:0] > 0).any(0)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, dynamic: bool) -> None:
    def make() -> tuple[torch.Tensor]:
        return (torch.randn(8, 8, device="cuda", requires_grad=True),)

    assert not differences(PROGRAMS[name], make, dynamic=dynamic, messages=False)
