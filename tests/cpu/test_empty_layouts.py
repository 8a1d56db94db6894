"""Tensors without elements have eager's strides, zeros among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = [(1, 3, 0, 0), (2, 0, 3, 4), (0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 5, 0), (2, 3, 0, 2, 2)]


def formatted(x: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if x.ndim == 4 else torch.channels_last_3d


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(memory_format=formatted(x)),
    "empty": lambda x: torch.empty(x.shape, memory_format=formatted(x)),
    "clone": lambda x: x.clone(),
    "clone_of_view": lambda x: x[..., :].clone(),
    "add": lambda x: x.contiguous(memory_format=formatted(x)) + 1,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_strides(shape: tuple[int, ...]) -> None:
    row_major = torch.zeros(shape)
    for x in (row_major, torch.empty(shape, memory_format=formatted(row_major))):
        for name, program in PROGRAMS.items():
            for backend in ("eager", "aot_eager", "inductor"):
                got = flambeau.compile(program, backend=backend)(x)
                assert got.stride() == program(x).stride(), (name, backend)
