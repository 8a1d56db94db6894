"""Arguments that eager refuses: compiled programs raise the same, though a shape rule would have an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

X, IMAGE, BOOLS = torch.randn(2, 3, 8), torch.randn(2, 3, 8, 8), torch.ones(4, dtype=torch.bool)

CALLS: dict[str, Callable[[], Any]] = {
    "avg_pool1d": lambda: F.avg_pool1d(X, 2, padding=-1),
    "avg_pool2d": lambda: F.avg_pool2d(IMAGE, 2, padding=-1),
    "avg_pool1d of none": lambda: F.avg_pool1d(torch.zeros(0, 3, 8), 2, padding=-1),
    "max_pool1d": lambda: F.max_pool1d(X, 2, padding=-1),
    "max_pool1d of none": lambda: F.max_pool1d(torch.zeros(0, 3, 8), 2, padding=-1),
    "max_pool3d of none": lambda: F.max_pool3d(torch.zeros(0, 3, 8, 8, 8), 2, padding=-1),
    "max_pool3d of no channels": lambda: F.max_pool3d(torch.zeros(1, 0, 8, 8, 8), 2),
    "huber_loss": lambda: F.huber_loss(X, X, delta=0.0),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(X, X, beta=-1.0),
    "gelu": lambda: F.gelu(X, approximate="asdf"),
    "softshrink": lambda: F.softshrink(X, lambd=-0.5),
    "amax": lambda: torch.ones([1] * 65).amax(0),
    "clamp of bools": lambda: torch.clamp(BOOLS, BOOLS, BOOLS),
    "addcmul of bools": lambda: torch.addcmul(BOOLS, BOOLS, BOOLS),
    "addcmul_ of bools": lambda: BOOLS.clone().addcmul_(BOOLS, BOOLS),
    "celu": lambda: F.celu(X, 0.0),
    "acos of float8": lambda: torch.acos(X.to(torch.float8_e4m3fn)),
}


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("the call is to raise an error")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_raises_as_eager(name: str, dynamic: bool) -> None:
    call = CALLS[name]
    assert outcome(flambeau.compile(call, backend="aot_eager", dynamic=dynamic)) == outcome(call)


def test_a_program_handles_the_error() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return F.softshrink(x, lambd=-0.5)
        except RuntimeError:
            return x + 1

    compiled = flambeau.compile(program, fullgraph=True)
    assert torch.equal(compiled(X), X + 1)
