"""Padding by reflection and replication, and shuffled pixels: index maps.

    reflection_pad1d(x, [2, 1])  ->  x[2], x[1], x[0], ..., x[n - 1], x[n - 2]

The gradient of padding adds to each element those of its images: the middle of the gradient, and
its ends, flipped and laid over the borders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size

aten = torch.ops.aten

LONGEST_BORDER = 32
"""The gradients of wider replicated borders are summed before they are added."""


def _sides(padding: Sequence[Size], ndim: int) -> list[tuple[int, Size, Size]]:
    """(dim, before, after) for each padded dim, the last one first."""
    return [(ndim - 1 - i, padding[2 * i], padding[2 * i + 1]) for i in range(len(padding) // 2)]


# 1. Padding


@decomposition(
    aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default
)
def reflection_pad(b: Builder, x: Value, padding: Sequence[Size]) -> Any:
    """Mirrored at the first and last elements."""
    return _padded(b, x, padding, reflects=True)


@decomposition(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(b: Builder, x: Value, padding: Sequence[Size]) -> Any:
    """The first and last elements repeated."""
    return _padded(b, x, padding, reflects=False)


def pays(device: torch.device) -> bool:
    """Whether loops beat eager's kernels, which on a CPU copy the inside row by row."""
    return device.type != "cpu"


def _padded(b: Builder, x: Value, padding: Sequence[Size], *, reflects: bool) -> Any:
    if not pays(x.spec.device):
        return NotImplemented
    places: list[Value] = []
    spatial = len(padding) // 2
    wanted = b.result.shape[-spatial:]
    for dim, before, _ in reversed(_sides(padding, x.spec.ndim)):
        number = len(places)
        size = x.spec.shape[dim]
        last = size - 1
        place = b.iota(wanted[number], -before, 1, torch.int64, x.spec.device)
        if reflects:
            place = b.sub(last, b.abs(b.sub(last, b.abs(place))))
        place = b.minimum(b.maximum(place, 0), last)
        places.append(b.along(place, (number,), wanted))
    return b.index(x, [*[None] * (x.spec.ndim - spatial), *places])


# 2. Its gradient


@decomposition(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(b: Builder, grad: Value, x: Value, padding: Sequence[Size]) -> Any:
    """For each element the sum over its images."""
    if not pays(x.spec.device) or any(sizes.lt(amount, 0) for amount in padding):
        return NotImplemented
    grad = b.widen(grad)
    for dim, before, after in _sides(padding, x.spec.ndim):
        size = x.spec.shape[dim]
        total = b.slice(grad, dim, before, before + size, 1)
        if sizes.gt(before, 0):
            image = b.flip(b.slice(grad, dim, 0, before, 1), (dim,))
            total = b.add(total, _laid(b, image, dim, 1, size))
        if sizes.gt(after, 0):
            image = b.flip(b.slice(grad, dim, before + size, before + size + after, 1), (dim,))
            total = b.add(total, _laid(b, image, dim, size - 1 - after, size))
        grad = total
    return grad


@decomposition(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(b: Builder, grad: Value, x: Value, padding: Sequence[Size]) -> Any:
    """For each element the sum over its copies."""
    narrow = all(isinstance(n, int) and 0 <= n <= LONGEST_BORDER for n in padding)
    if not pays(x.spec.device) or not narrow:
        return NotImplemented
    grad = b.widen(grad)
    for dim, before, after in _sides(padding, x.spec.ndim):
        size = x.spec.shape[dim]
        total = b.slice(grad, dim, before, before + size, 1)
        for begin, count, place in ((0, before, 0), (before + size, after, size - 1)):
            steps = range(sizes.as_int(count))
            copies = [b.slice(grad, dim, begin + k, begin + k + 1, 1) for k in steps]
            if copies:
                edge = copies[0]
                for copy in copies[1:]:
                    edge = b.add(edge, copy)
                total = b.add(total, _laid(b, edge, dim, place, size))
        grad = total
    return grad


def _laid(b: Builder, part: Value, dim: int, begin: Size, size: Size) -> Value:
    """A part of a dim at its place, zeros elsewhere."""
    lows: list[Size] = [0] * part.spec.ndim
    highs: list[Size] = [0] * part.spec.ndim
    lows[dim] = begin
    highs[dim] = size - begin - part.spec.shape[dim]
    return b.pad(part, tuple(lows), tuple(highs), 0.0)


# 3. Shuffled pixels and channels


@decomposition(aten.pixel_shuffle.default)
def pixel_shuffle(b: Builder, x: Value, upscale_factor: int) -> Value:
    """Channels to space: each channel's square of factors becomes a square of pixels."""
    *outer, channels, height, width = x.spec.shape
    r, lead = upscale_factor, len(outer)
    x = b.reshape(x, (*outer, channels // (r * r), r, r, height, width))
    order = (*range(lead), lead, lead + 3, lead + 1, lead + 4, lead + 2)
    return b.reshape(b.permute(x, order), b.result.shape)


@decomposition(aten.pixel_unshuffle.default)
def pixel_unshuffle(b: Builder, x: Value, downscale_factor: int) -> Value:
    """Space to channels."""
    *outer, channels, height, width = x.spec.shape
    r, lead = downscale_factor, len(outer)
    x = b.reshape(x, (*outer, channels, height // r, r, width // r, r))
    order = (*range(lead), lead, lead + 2, lead + 4, lead + 1, lead + 3)
    return b.reshape(b.permute(x, order), b.result.shape)


@decomposition(aten.native_channel_shuffle.default)
def channel_shuffle(b: Builder, x: Value, groups: Size) -> Value:
    """Channels of all groups in turn."""
    n, channels, *space = x.spec.shape
    x = b.reshape(x, (n, groups, channels // groups, *space))
    order = (0, 2, 1, *range(3, 3 + len(space)))
    return b.reshape(b.permute(x, order), b.result.shape)
