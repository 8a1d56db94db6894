"""Second derivatives of programs that draw random numbers on a GPU: the same as eager's, and the
generators stand where eager leaves them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import flambeau

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CALLS = 8
"""More than the calls after which Programs are launched as recorded graphs."""


def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout((x @ w).tanh(), 0.4)


def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.dropout((x @ w).tanh(), 0.3)
    return (F.dropout(h.exp(), 0.2) @ w.t()).sin()


def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(x.shape, device=x.device, dtype=x.dtype)
    return ((x * noise) @ w).exp() + torch.randn_like(w).sum()


def on_both(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout((x @ w).tanh(), 0.4) * torch.rand(4, dtype=x.dtype).cuda()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("program", [dropped, twice, noisy, on_both])
def test_gradient_penalty(program: Any, mode: str | None) -> None:
    compiled = flambeau.compile(program, mode=mode)
    shown = []
    for run in (program, compiled):
        torch.manual_seed(7)
        found: list[Any] = []
        for number in range(CALLS):
            x, w = torch.randn(5, 6, device="cuda"), torch.randn(6, 4, device="cuda")
            x.requires_grad_(), w.requires_grad_()
            y = run(x, w)
            y = y + run(x * 0.5, w) if number % 2 else y  # another call between, too
            (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            (y.sum() + g.square().sum()).backward()
            found += [y.detach(), x.grad, w.grad, torch.rand(3, device="cuda"), torch.rand(3)]
        shown.append(found)
    torch.testing.assert_close(shown[1], shown[0], rtol=1e-3, atol=1e-4)


def test_third_derivatives() -> None:
    compiled = flambeau.compile(twice)
    shown = []
    for run in (twice, compiled):
        torch.manual_seed(3)
        x = torch.randn(5, 6, device="cuda", dtype=torch.double, requires_grad=True)
        w = torch.randn(6, 4, device="cuda", dtype=torch.double, requires_grad=True)
        value: Any = run(x, w).sum()
        for _ in range(3):
            (value,) = torch.autograd.grad(value.square().sum(), x, create_graph=True)
        shown.append([value, *torch.autograd.grad(value.sum(), (x, w))])
    torch.testing.assert_close(*shown)
