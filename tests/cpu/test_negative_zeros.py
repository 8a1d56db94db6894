"""The number -0.0 in programs: eager's sign, in every floating dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "full": lambda x: torch.full_like(x, -0.0),
    "fill": lambda x: x.clone()[..., :1].fill_(-0.0),
    "where": lambda x: torch.where(x > 0, x, -0.0),
    "cat": lambda x: torch.cat([x, torch.full_like(x, -0.0)]),
    "pad": lambda x: F.pad(x, (1, 2), value=-0.0),
    "product": lambda x: torch.full_like(x, -0.0) * x.abs(),
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_signs(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 5).to(dtype)
    expected = PROGRAMS[name](x)
    result = flambeau.compile(PROGRAMS[name])(x)
    assert torch.equal(result, expected)
    assert torch.equal(result.signbit(), expected.signbit())


@pytest.mark.parametrize("eps", [None, 0.0])
def test_the_gradient_of_logit_at_zeros_of_both_signs(eps: float | None) -> None:
    """Infinite; three elements, as eager's vectors of many disagree with its scalars."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.logit(eps)

    gradients = []
    for function in (program, flambeau.compile(program)):
        x = torch.tensor([-0.0, 0.0, 0.25], requires_grad=True)
        function(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
