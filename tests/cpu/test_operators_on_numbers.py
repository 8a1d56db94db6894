"""Operators whose arguments are all numbers: their results are tensors of no dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau.report import report_of
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "div": lambda x: (torch.div(x.shape[0], 2), torch.div(x.shape[0], 2) * x),
    "trunc": lambda x: x + torch.div(-x.shape[0], 2, rounding_mode="trunc"),
    "floor": lambda x: torch.div(-x.shape[0], 2, rounding_mode="floor") * x.double(),
    "add": lambda x: torch.add(x.shape[0], 1.5, alpha=2) - x,
    "sub": lambda x: (torch.sub(3, x.shape[1]), torch.mul(2, x.shape[1]) * x),
    "remainder": lambda x: torch.remainder(x.shape[0], torch.tensor(4)) + x,
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_on_numbers(name: str, dynamic: bool, inference: bool) -> None:
    compiled = flambeau.compile(PROGRAMS[name], dynamic=dynamic, fullgraph=True)
    for rows in (6, 7, 0):
        with torch.inference_mode(inference):
            x = torch.randn(rows, 4)
            same(compiled(x), PROGRAMS[name](x))
    assert all(graph.fallback is None for graph in report_of(compiled).graphs)
