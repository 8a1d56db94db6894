"""Tensors inside poisoned storages: what lies before, between and behind their elements is NaN, or
the largest number of the dtype, so that a read of it shows in a result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tools.fuzz.kernels.numbers import draw_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

MARGIN = 64
"""Poisoned elements before and behind a tensor; the first element is aligned as far as this is."""


@dataclass(frozen=True)
class Layout:
    """How the elements of a tensor lie in memory, in elements."""

    shift: int = 0
    """The first element lies this far behind an aligned address."""
    step: int = 1
    """The stride of the innermost dim."""
    gap: int = 0
    """What lies between two rows of the innermost dim."""
    expanded: int | None = None
    """A dim of stride 0."""
    order: str = "rows"
    """The order of the dims in memory: rows, transposed, reversed or channels_last."""

    def dims(self, ndim: int) -> list[int]:
        """The dims, outermost in memory first."""
        dims = list(range(ndim))
        if self.order == "transposed":
            return [*dims[:-2], *reversed(dims[-2:])]
        if self.order == "reversed":
            return dims[::-1]
        if self.order == "channels_last" and ndim > 2:
            return [0, *dims[2:], 1]
        return dims

    def strides(self, shape: tuple[int, ...]) -> tuple[list[int], int]:
        """The strides of a tensor without expanded dims, and how many elements it spans."""
        strides, stride = [0] * len(shape), self.step
        for number, dim in enumerate(reversed(self.dims(len(shape)))):
            strides[dim] = stride
            stride *= max(shape[dim], 1)
            stride += self.gap * (number == 0)
        return strides, stride


LAYOUTS = {
    "contiguous": Layout(),
    "shifted": Layout(shift=1),
    "strided": Layout(step=2),
    "gaps": Layout(gap=3),
    "transposed": Layout(order="transposed"),
    "reversed": Layout(order="reversed"),
    "channels_last": Layout(order="channels_last"),
    "expanded_first": Layout(expanded=0),
    "expanded_last": Layout(expanded=-1),
}


def poison(dtype: torch.dtype) -> float:
    """The number that fills memory around tensors of this dtype."""
    if dtype is torch.bool:
        return True
    return math.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


def place(values: torch.Tensor, layout: Layout, device: str = "cpu") -> torch.Tensor:
    """A tensor of these values (of one index of the expanded dim) in a poisoned storage."""
    shape = tuple(values.shape)
    if layout.expanded is not None and values.ndim and values.shape[layout.expanded]:
        values = values.narrow(layout.expanded, 0, 1)
    strides, span = layout.strides(tuple(values.shape))
    start = MARGIN + layout.shift
    storage = torch.full(
        (start + span + MARGIN,), poison(values.dtype), dtype=values.dtype, device=device
    )
    placed = storage.as_strided(values.shape, strides, start)
    placed.copy_(values)
    # Detached, since a view of a storage that the program does not know is no leaf.
    return placed.expand(shape).detach()


def placed(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    values: str = "normal",
    layout: str = "contiguous",
    device: str = "cpu",
) -> torch.Tensor:
    """A tensor of random numbers (see `draw_numbers`) in a layout of `LAYOUTS`."""
    return place(draw_numbers(shape, dtype, values), LAYOUTS[layout], device)


@dataclass(frozen=True)
class Input:
    """An input of a program; as text, a call of `placed`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: str = "normal"
    layout: str = "contiguous"
    device: str = "cpu"
    requires_grad: bool = False

    def __str__(self) -> str:
        words = [str(self.shape), str(self.dtype), f'"{self.values}"', f'"{self.layout}"']
        words += [f'"{self.device}"'] * (self.device != "cpu")
        return f"placed({', '.join(words)})" + ".requires_grad_()" * self.requires_grad

    @classmethod
    def read(cls, text: str) -> Input:
        """The input that was printed as this text."""
        call = text.removesuffix(".requires_grad_()")
        made: Input = eval(call, {"placed": cls, "torch": torch})
        return replace(made, requires_grad=call != text)

    def simpler(self) -> Iterator[Input]:
        """Inputs with one property that is plainer."""
        values = self.values if " " in self.values else "normal"
        dtype = torch.float32 if self.dtype.is_floating_point else self.dtype
        for plain in (
            replace(self, requires_grad=False),
            replace(self, layout="contiguous"),
            replace(self, values=values),
            replace(self, dtype=dtype),
        ):
            if plain != self:
                yield plain
        for dim, size in enumerate(self.shape):
            for less in (1, 2, size // 2):
                if less < size:
                    yield replace(self, shape=(*self.shape[:dim], less, *self.shape[dim + 1 :]))
