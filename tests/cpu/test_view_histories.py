"""Custom Functions whose results are views of inputs or of other results: their gradients are those
of the Functions, not those of views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable


class Reverse(torch.autograd.Function):
    """Reverses gradients, as `x.view_as(x)`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return -3 * gradient


class Attached(torch.autograd.Function):
    """A tensor, with a gradient for another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient.sum(0)


def _made(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    return y, Reverse.apply(y)  # type: ignore[no-untyped-call]


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "input": lambda x, w: Reverse.apply(x),  # type: ignore[no-untyped-call]
    "view of an input": lambda x, w: (Reverse.apply(x.t()), x * w),  # type: ignore[no-untyped-call]
    "view behind": lambda x, w: Reverse.apply(x).view(-1),  # type: ignore[no-untyped-call]
    "result": _made,
    "constant": lambda x, w: Attached.apply(x.detach(), w),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_the_function(name: str) -> None:
    shown = []
    for call in (flambeau.compile(PROGRAMS[name], fullgraph=True), PROGRAMS[name]):
        x, w = torch.arange(9.0).view(3, 3).requires_grad_(), torch.ones(3, requires_grad=True)
        results = call(x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(y.sin().sum() for y in results).backward()
        shown.append(([y.detach() for y in results], x.grad, w.grad))
    same(*shown, strides=False)
