"""Tensors without elements have eager's strides, zeros among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = [
    (1, 3, 0, 0), (2, 0, 3, 4), (0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 5, 0), (2, 3, 0, 2, 2),
    (1, 3, 0, 1), (2, 0, 1, 0), (0, 1, 1, 2),
]  # fmt: skip


def formatted(x: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if x.ndim == 4 else torch.channels_last_3d


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(memory_format=formatted(x)),
    "empty": lambda x: torch.empty(x.shape, memory_format=formatted(x)),
    "clone": lambda x: x.clone(),
    "clone_of_view": lambda x: x[..., :].clone(),
    "add": lambda x: x.contiguous(memory_format=formatted(x)) + 1,
    "scalar": lambda x: 1 - x / 3,
    "power": lambda x: x**2,
    "broadcast": lambda x: x * x.sum(1, keepdim=True),
    "finite": lambda x: x.nan_to_num(),
    "degrees": torch.rad2deg,
    "expanded": lambda x: x.sum().expand(1, 1),
}


def all_of(x: torch.Tensor) -> list[torch.Tensor]:
    return [program(x) for program in PROGRAMS.values()]


@pytest.mark.parametrize("shape", SHAPES)
def test_strides(shape: tuple[int, ...]) -> None:
    row_major = torch.zeros(shape)
    for backend in ("eager", "aot_eager", "inductor"):
        compiled = flambeau.compile(all_of, backend=backend)
        for x in (row_major, torch.empty(shape, memory_format=formatted(row_major))):
            for name, got, wanted in zip(PROGRAMS, compiled(x), all_of(x), strict=True):
                assert got.stride() == wanted.stride(), (name, backend)
