"""Random numbers of tensors: ordinary ones, and those at which kernels go wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1e15, 1.0)


def _with_special(normal: torch.Tensor, uniform: torch.Tensor, *numbers: float) -> torch.Tensor:
    """One element in 30 is each of these numbers."""
    for number, special in enumerate(numbers):
        normal = torch.where((30 * uniform).floor() == number, special, normal)
    return normal


def _equal_rows(normal: torch.Tensor) -> torch.Tensor:
    return normal[..., :1].expand_as(normal) if normal.ndim else normal


FLOATS: dict[str, Draw] = {
    "normal": lambda normal, uniform: normal,
    "uniform": lambda normal, uniform: uniform,
    "hundreds": lambda normal, uniform: normal * 100,
    "thousandths": lambda normal, uniform: normal / 1000,
    "ties": lambda normal, uniform: (normal * 2).round(),
    "magnitudes": lambda normal, uniform: normal * 10.0 ** (uniform * 8 - 5),
    "nan": lambda normal, uniform: _with_special(normal, uniform, math.nan),
    "infinite": lambda normal, uniform: _with_special(normal, uniform, math.inf, -math.inf),
    "special": lambda normal, uniform: _with_special(normal, uniform, *SPECIAL),
    "offset": lambda normal, uniform: normal + 1e4,
    "equal_rows": lambda normal, uniform: _equal_rows(normal),
}
"""Each from independent normal and uniform numbers of the shape."""

INTEGERS = ("small", "whole_range")


def draw_numbers(shape: tuple[int, ...], dtype: torch.dtype, values: str) -> torch.Tensor:
    """Numbers from torch's generator, on the CPU. values: a name of `FLOATS` or `INTEGERS` (others
    are "small" for integers), "below N" (indices) or "within N" (indices, negative ones too).
    """
    if dtype.is_complex:
        parts = (draw_numbers(shape, torch.float32, values) for _ in range(2))
        return torch.complex(*parts).to(dtype)
    if dtype.is_floating_point:
        return FLOATS[values](torch.randn(shape), torch.rand(shape)).to(dtype)
    name, _, bound = values.partition(" ")
    if bound:
        return torch.randint(-int(bound) if name == "within" else 0, int(bound), shape).to(dtype)
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    limits = torch.iinfo(dtype)
    if name != "whole_range":
        return torch.randint(0 if limits.min == 0 else -9, 10, shape).to(dtype)
    # randint's bounds are of int64, and it excludes the upper one.
    low, high = max(limits.min, -(2**62)), min(limits.max, 2**62)
    numbers = torch.randint(low, high, shape).to(dtype)
    extremes = torch.tensor([limits.min, limits.max], dtype=dtype)
    return torch.where(torch.rand(shape) < 0.1, extremes[torch.randint(0, 2, shape)], numbers)
