"""Programs whose time is the host's: chains of library calls on tensors of a few elements.

No kernel of our own computes these operators, so a compiled program calls ATen for each; nothing
else in the program takes time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from tools.bench.cases import Case

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 50
"""Library calls of one program."""


def _chain(step: Callable[..., torch.Tensor], *args: torch.Tensor) -> Case:
    def program(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for _ in range(CALLS):
            x = step(x, *others)
        return x

    return Case(program, lambda f: f(*args))


def mm(device: str) -> Case:
    """A matrix product, 8 x 8."""
    x, w = torch.randn(2, 8, 8, device=device) / 3
    return _chain(torch.mm, x, w)


def linear(device: str) -> Case:
    """A linear layer with a bias, 8 x 8."""
    x, w = torch.randn(2, 8, 8, device=device) / 3
    return _chain(F.linear, x, w, torch.randn(8, device=device))


def bmm(device: str) -> Case:
    """A batch of two matrix products, 8 x 8."""
    x, w = torch.randn(2, 2, 8, 8, device=device) / 3
    return _chain(torch.bmm, x, w)


def convolution(device: str) -> Case:
    """A convolution of an 8 x 8 image with 4 channels by 3 x 3 weights."""
    x, w = torch.randn(1, 4, 8, 8, device=device), torch.randn(4, 4, 3, 3, device=device) / 6
    return _chain(lambda x, w: F.conv2d(x, w, padding=1), x, w)


def attention(device: str) -> Case:
    """Attention of two heads over 8 positions."""
    q, k, v = torch.randn(3, 1, 2, 8, 16, device=device)
    return _chain(F.scaled_dot_product_attention, q, k, v)


def fft(device: str) -> Case:
    """A Fourier transform of 16 complex numbers."""
    return _chain(torch.fft.fft, torch.randn(16, dtype=torch.complex64, device=device))


HOST_CASES = {case.__name__: case for case in (mm, linear, bmm, convolution, attention, fft)}
