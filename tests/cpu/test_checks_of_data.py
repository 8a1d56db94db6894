"""Operators that raise where the data is wrong raise compiled, too, though nothing reads their results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")


def asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() > 0, "a sum that is positive")
    return x + 1


def inverted(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x) @ x


def factored(x: torch.Tensor) -> torch.Tensor:
    torch.linalg.cholesky(x)
    return x * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [asserted, inverted, factored])
@pytest.mark.parametrize("gradients", [False, True])
def test_wrong_data_raises(
    program: Callable[[torch.Tensor], torch.Tensor], backend: str, gradients: bool
) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    good = (torch.eye(3) * 2).requires_grad_(gradients)
    torch.testing.assert_close(compiled(good), program(good))
    bad = torch.zeros(3, 3).requires_grad_(gradients)
    with pytest.raises(RuntimeError) as eager:
        program(bad)
    with pytest.raises(type(eager.value), match=re.escape(str(eager.value).splitlines()[0])):
        compiled(bad)
