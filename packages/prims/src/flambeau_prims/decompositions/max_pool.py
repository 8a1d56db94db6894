"""Max pooling: the places of every window compared one after another.

    max_pool1d(x, 2)  ->  first, second = x[0::2], x[1::2];  values = maximum(second, first);  indices = 2 * i + (second > first)

As in eager, the first of equal elements is taken, and the last NaN if there is one.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.windows import Windows, at_taps, begins, windows_of
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

LARGEST_UNROLLED = 27
"""Windows of more places than this stay ATen's."""


@decomposition(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    b: Builder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """Maxima of windows, and where each stands in its plane."""
    image, counts = x.spec.shape[-2:], b.result.shape[-2:]
    windows = windows_of(image, counts, kernel_size, stride, padding, dilation, ceil_mode)
    if windows is None or prod(window.kernel for window in windows) > LARGEST_UNROLLED:
        return NotImplemented
    return _maxima(b, x, windows)


def _maxima(b: Builder, x: Value, windows: tuple[Windows, ...]) -> tuple[Value, Value]:
    """The greatest element of each window over x's last dims, and its row-major place in those dims."""
    x = b.widen(x)
    scales: list[Size] = [1]
    for window in reversed(windows[1:]):
        scales.insert(0, scales[0] * window.size)
    plane = scales[0] * windows[0].size
    dtype = torch.int32 if isinstance(plane, int) and plane < 2**31 else torch.int64
    best: Value | None = None
    move: Value | None = None  # from where the window begins to its greatest element so far
    for taps in product(*(range(window.kernel) for window in windows)):
        element = at_taps(b, x, windows, taps, _least(x.spec.dtype))
        distance = sum(
            tap * window.dilation * scale
            for tap, window, scale in zip(taps, windows, scales, strict=True)
        )
        if best is None:
            best = b.tensor(_least(x.spec.dtype), b.result, x.spec.dtype) if element is None else element
            move = _to_first_element(b, windows, scales, b.result.shape, dtype, x.spec.device)
        elif element is not None:
            assert move is not None
            better = b.gt(element, best)
            if x.spec.dtype.is_floating_point:
                better = b.bitwise_or(better, b.isnan(element))
            move = b.where(better, distance, move)
            best = b.maximum(element, best)
    assert best is not None and move is not None
    place = move
    for number, (window, scale) in enumerate(zip(windows, scales, strict=True)):
        begin = begins(b, window, scale, dtype, x.spec.device)
        dim = len(b.result.shape) - len(windows) + number
        place = b.add(place, b.along(begin, (dim,), b.result.shape))
    return best, b.cast(place, torch.int64)


def _least(dtype: torch.dtype) -> float:
    """What no element is less than."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _to_first_element(
    b: Builder, windows: Sequence[Windows], scales: Sequence[Size], shape: tuple[Size, ...], dtype: torch.dtype,
    device: torch.device,
) -> Value:  # fmt: skip
    """How far behind its beginning each window's first element stands: further than 0 where it begins in the padding."""
    total = b.full(shape, 0, dtype, device)
    for number, (window, scale) in enumerate(zip(windows, scales, strict=True)):
        if window.pad == 0:
            continue
        missing = b.iota(window.count, window.pad, -window.step, dtype, device)
        taps = b.floor_divide(b.add(missing, window.dilation - 1), window.dilation)
        step = b.mul(b.maximum(taps, 0), window.dilation * scale)
        total = b.add(total, b.along(step, (len(shape) - len(windows) + number,), shape))
    return total
