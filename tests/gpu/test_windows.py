"""Windows, resampling and scatters on a GPU, forward and backward."""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.programs.windows import PROGRAMS, assert_as_near_as_eager

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_near_as_eager(name: str) -> None:
    function, makers = PROGRAMS[name]
    torch.manual_seed(0)
    arguments = tuple(make().cuda() for make in makers)
    assert_as_near_as_eager(function, flambeau.compile(function, fullgraph=True), arguments)


def test_sums_are_deterministic_if_asked_for() -> None:
    arguments = (
        torch.randn(9, 513, device="cuda"),
        torch.randint(0, 9, (4000,), device="cuda"),
        torch.randn(4000, 513, device="cuda"),
    )
    function = flambeau.compile(lambda x, i, s: x.index_add(0, i, s))
    torch.use_deterministic_algorithms(True)
    try:
        first = function(*arguments)
        assert all(torch.equal(function(*arguments), first) for _ in range(4))
    finally:
        torch.use_deterministic_algorithms(False)
