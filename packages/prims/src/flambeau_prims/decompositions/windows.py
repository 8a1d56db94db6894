"""The windows of pooling, along each dim of the image, and what one place of every window holds.

A dim of size 5, windows of 3 in steps of 2 with 1 of padding: windows begin at -1, 1, 3.
The first place of each (tap 0): [outside, x[1], x[3]]: x[1:4:2], with one element before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_prims import sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size, Spec


LARGEST_UNROLLED = 27
"""Windows of more places than this stay ATen's."""


@dataclass(frozen=True)
class Windows:
    """The windows along one dim: `count` of them over `size` elements, each of `kernel` places,
    `dilation` apart.

    `ceil`: the last window may reach beyond the padding.
    """

    size: Size
    count: Size
    kernel: int
    step: int
    pad: int
    dilation: int
    ceil: bool

    def offset(self, tap: int) -> int:
        """The position of tap `tap` of the first window."""
        return tap * self.dilation - self.pad

    def inside(self, tap: int) -> tuple[Size, Size]:
        """The first window whose tap lies in the image, and the first behind those."""
        offset = self.offset(tap)
        first = -(offset // self.step) if offset < 0 else 0
        if not self.ceil and self.pad <= (self.kernel - 1 - tap) * self.dilation:
            last = (
                self.count
            )  # windows end inside the padding, and as many places behind this one are left
        else:
            last = sizes.size_min(self.count, (self.size - 1 - offset) // self.step + 1)
        return first, last


def spread(values: Sequence[int] | int, ndim: int) -> tuple[int, ...] | None:
    """One int a dim, where one may stand for all; None if some are not ints."""
    result = (values,) if isinstance(values, int) else tuple(values)
    if not all(isinstance(value, int) for value in result):
        return None
    return result * ndim if len(result) == 1 else result


def windows_of(
    image: Spec, pooled: Spec, ndim: int, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil: bool,
) -> tuple[Windows, ...] | None:  # fmt: skip
    """The windows of an image's last `ndim` dims, or None if an argument is symbolic."""
    extents = spread(kernel, ndim)
    steps = spread(stride, ndim) if stride else extents
    pads, dilations = spread(padding, ndim), spread(dilation, ndim)
    if extents is None or steps is None or pads is None or dilations is None:
        return None
    sides = zip(image.shape[-ndim:], pooled.shape[-ndim:], strict=True)
    arguments = zip(extents, steps, pads, dilations, strict=True)
    return tuple(
        Windows(*side, *window, ceil) for side, window in zip(sides, arguments, strict=True)
    )


def even_windows(image: Sequence[Size], counts: Sequence[Size]) -> tuple[Windows, ...] | None:
    """Windows that divide an image evenly; None if they do not, or sizes are symbolic."""
    result = []
    for size, count in zip(image, counts, strict=True):
        if not isinstance(size, int) or not isinstance(count, int) or count == 0 or size % count:
            return None
        result.append(Windows(size, count, size // count, size // count, 0, 1, ceil=False))
    return tuple(result)


def at_taps(
    b: Builder, x: Value, windows: Sequence[Windows], taps: Sequence[int], outside: float
) -> Value | None:
    """What the windows hold at these taps (one a dim), `outside` where that is no element of x;
    None if all are outside.

    The windows run over the last dims of x.
    """
    lead = x.spec.ndim - len(windows)
    lows: list[Size] = [0] * lead
    highs: list[Size] = [0] * lead
    for number, (window, tap) in enumerate(zip(windows, taps, strict=True)):
        first, last = window.inside(tap)
        if sizes.le(last, first):
            return None
        start = first * window.step + window.offset(tap)
        stop = start + (last - first - 1) * window.step + 1
        x = b.slice(x, lead + number, start, stop, window.step)
        lows.append(first)
        highs.append(window.count - last)
    return b.pad(x, tuple(lows), tuple(highs), outside)


def index_dtype(*sizes_of_it: Size) -> torch.dtype:
    """The dtype of places below the product of these sizes: int32 where that is certain to do."""
    count = 1
    for size in sizes_of_it:
        if not isinstance(size, int):
            return torch.int64
        count *= max(size, 1)
    return torch.int32 if count < 2**31 else torch.int64


def begins(
    b: Builder, window: Windows, scale: Size, dtype: torch.dtype, device: torch.device
) -> Value:
    """The begin of each window along a dim, times `scale`; negative in the padding."""
    return b.iota(window.count, -window.pad * scale, window.step * scale, dtype, device)


def overlap(window: Windows) -> int:
    """How many windows can cover one place."""
    return -(-((window.kernel - 1) * window.dilation + 1) // window.step)


def at_places(
    b: Builder, y: Value, windows: Sequence[Windows], back: Sequence[int], outside: float
) -> Value | None:
    """For each place of the image what y holds for the window that began `back` windows before the
    last that begins there or before it (one number a dim); `outside` where there is none. None if
    there is none for any place.

    y has an element for each window in its last dims; whether the window reaches the place is not
    asked.
    """
    lead = y.spec.ndim - len(windows)
    lows: list[Size] = [0] * lead
    highs: list[Size] = [0] * lead
    for number, (window, skipped) in enumerate(zip(windows, back, strict=True)):
        dim = lead + number
        length = window.count * window.step
        y = _repeated(b, y, dim, window.step)
        # Place i is element i + shift of what was repeated.
        shift = window.pad - skipped * window.step
        first = max(-shift, 0)
        last = sizes.size_min(window.size, length - shift)
        if sizes.le(last, first):
            return None
        y = b.slice(y, dim, first + shift, last + shift, 1)
        lows.append(first)
        highs.append(window.size - last)
    return b.pad(y, tuple(lows), tuple(highs), outside)


def _repeated(b: Builder, y: Value, dim: int, times: int) -> Value:
    """y with every element of one dim repeated on the spot."""
    shape = y.spec.shape
    wide = (*shape[: dim + 1], times, *shape[dim + 1 :])
    y = b.expand(b.unsqueeze(y, dim + 1), wide)
    return b.reshape(y, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))
