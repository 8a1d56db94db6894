"""Inputs of programs: short names for draws of many kinds."""

from __future__ import annotations

import torch


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal floats that need no gradient."""
    return torch.randn(shape).to(dtype)


def grad(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal floats that need a gradient."""
    return torch.randn(shape).to(dtype).requires_grad_()


def uniform(*shape: int, low: float = 0.1, high: float = 2.0) -> torch.Tensor:
    """Uniform floats that need a gradient, for functions with a narrow domain."""
    return (torch.rand(shape) * (high - low) + low).requires_grad_()


def ints(
    *shape: int, low: int = -9, high: int = 9, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Integers in [low, high)."""
    return torch.randint(low, high, shape).to(dtype)


def bools(*shape: int) -> torch.Tensor:
    """Coins."""
    return torch.rand(shape) > 0.5


def transposed(*shape: int) -> torch.Tensor:
    """A leaf whose last two dims are stored the other way round."""
    *batch, rows, columns = shape
    return torch.randn(*batch, columns, rows).transpose(-1, -2).requires_grad_()


def strided(*shape: int) -> torch.Tensor:
    """A leaf that is every second row, from the first on, of every third column."""
    *batch, rows, columns = shape
    return torch.randn(*batch, 2 * rows + 1, 3 * columns)[..., 1::2, ::3].requires_grad_()


def channels_last(*shape: int) -> torch.Tensor:
    """A leaf stored with its channels innermost."""
    return torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Infinities, NaN, zeros of both signs, tiny, huge and ordinary numbers."""
    values = [
        float("inf"),
        float("-inf"),
        float("nan"),
        0.0,
        -0.0,
        1e-40,
        -1e-30,
        1e30,
        -3e38,
        0.5,
        -0.5,
        1.5,
        2.5,
        -1.5,
        1.0,
        -1.0,
    ]
    return torch.tensor(values, dtype=torch.float64).to(dtype)
