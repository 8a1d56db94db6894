"""Windows, resampling and scatters on a CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.programs.windows import PROGRAMS, assert_as_near_as_eager


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_near_as_eager(name: str) -> None:
    function, makers = PROGRAMS[name]
    torch.manual_seed(0)
    arguments = tuple(make() for make in makers)
    assert_as_near_as_eager(function, flambeau.compile(function, fullgraph=True), arguments)
