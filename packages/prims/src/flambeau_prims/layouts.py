"""Tensors with data in the strides that a graph promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def laid_out(result: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same elements in these strides, which may overlap where elements are equal: the tensor
    itself, a view, or a copy.
    """
    if result.stride() == stride:
        return result
    shape = result.shape
    if 0 in shape or all(
        size == 1 or step == known
        for size, step, known in zip(shape, stride, result.stride(), strict=True)
    ):
        return result.as_strided(shape, stride)
    if not overlaps(shape, stride):
        laid = torch.empty_strided(shape, stride, dtype=result.dtype, device=result.device)
        return laid.copy_(result)
    offsets = torch.zeros(1, dtype=torch.int64, device=result.device)
    for size, step in zip(shape, stride, strict=True):
        offsets = offsets[..., None] + torch.arange(size, device=result.device) * step
    memory = result.new_empty(int(offsets.max()) + 1)
    memory[offsets.flatten()] = result.flatten()
    return memory.as_strided(shape, stride)


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements of a tensor may share memory. Strides that no permutation nests, (3, 2) of a
    shape (2, 3), count as if they did.
    """
    extent = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True)):
        if size > 1:
            if step < extent:
                return True
            extent = step * (size - 1) + extent
    return False
