"""Small programs by number: equal in every process, and different kernels for each number."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: tuple[Callable[[torch.Tensor, float], torch.Tensor], ...] = (
    lambda x, c: torch.sin(x) * c,
    lambda x, c: torch.exp(-x * x) + c,
    lambda x, c: torch.tanh(x - c),
    lambda x, c: torch.softmax(x * c, -1),
    lambda x, c: x - x.mean(-1, keepdim=True) * c,
    lambda x, c: torch.relu(x) + x.sum(0, keepdim=True) * c,
    lambda x, c: torch.where(x > c, x, x.cos()),
    lambda x, c: (x @ x.t()) @ x * (c / 64),
)


def program(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The program of a number."""
    drawn = random.Random(number)
    steps = [(drawn.choice(STEPS), drawn.uniform(0.5, 1.5)) for _ in range(drawn.randint(2, 5))]

    def run(x: torch.Tensor) -> torch.Tensor:
        for step, constant in steps:
            x = step(x, constant)
        return x

    return run


def is_right(
    compiled: Callable[[torch.Tensor], torch.Tensor],
    number: int,
    rows: int,
    generator: torch.Generator,
) -> bool:
    """Whether a compiled program computes what the program does on new values."""
    x = torch.randn(rows, 7, generator=generator)
    return torch.allclose(compiled(x), program(number)(x), rtol=1e-4, atol=1e-5)
