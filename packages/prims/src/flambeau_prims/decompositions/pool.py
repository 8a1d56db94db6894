"""Average pooling, where windows are few or do not overlap.  (Max pooling stays ATen's.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.reduction import divide, mean
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

LARGEST_UNROLLED = 25
"""Windows of more elements than this stay ATen's."""


def _windows(b: Builder, x: Value, rows: Size, columns: Size) -> Value:
    """(..., H, W) as (..., rows, H / rows, columns, W / columns)."""
    *outer, height, width = x.spec.shape
    return b.reshape(x, (*outer, rows, height // rows, columns, width // columns))


def _window_mean(b: Builder, x: Value, rows: Size, columns: Size) -> Value:
    split = _windows(b, x, rows, columns)
    return mean(b, split, (split.spec.ndim - 3, split.spec.ndim - 1))


def _window_spread(b: Builder, grad: Value, height: Size, width: Size) -> Value:
    """Each window's gradient, repeated over its elements and divided by their number."""
    *outer, rows, columns = grad.spec.shape
    down, across = height // rows, width // columns
    ndim = grad.spec.ndim + 2
    share = b.spread(
        divide(b, grad, down * across), (ndim - 3, ndim - 1), (*outer, rows, down, columns, across)
    )
    return b.reshape(share, (*outer, height, width))


@decomposition(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(b: Builder, x: Value, output_size: Sequence[Size]) -> Any:
    """Means over an even division of the places."""
    rows, columns = output_size
    if not _divides(rows, x.spec.shape[-2]) or not _divides(columns, x.spec.shape[-1]):
        return NotImplemented
    return _window_mean(b, b.widen(x), rows, columns)


@decomposition(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(b: Builder, grad: Value, x: Value) -> Any:
    """Each window's gradient shared out."""
    height, width = x.spec.shape[-2:]
    rows, columns = grad.spec.shape[-2:]
    if not _divides(rows, height) or not _divides(columns, width):
        return NotImplemented
    return _window_spread(b, b.widen(grad), height, width)


def _divides(part: Size, whole: Size) -> bool:
    return not sizes.eq(part, 0) and sizes.eq(whole % part, 0)


def _pair(value: Sequence[int] | int) -> tuple[int, int]:
    first, *rest = [value] if isinstance(value, int) else value
    return first, (rest[0] if rest else first)


@decomposition(aten.avg_pool2d.default)
def avg_pool2d(
    b: Builder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Means over windows, as a sum of shifted slices."""
    down, across = _pair(kernel_size)
    steps = _pair(stride) if stride else (down, across)
    pads = _pair(padding)
    padded = pads != (0, 0)
    if (
        ceil_mode
        or down * across > LARGEST_UNROLLED
        or (padded and not count_include_pad and divisor_override is None)
    ):
        return NotImplemented
    outer = x.spec.ndim - 2
    x = b.pad(b.widen(x), (*[0] * outer, *pads), (*[0] * outer, *pads), 0.0)
    rows, columns = b.result.shape[-2:]
    total = None
    for i in range(down):
        band = b.slice(x, outer, i, i + (rows - 1) * steps[0] + 1, steps[0])
        for j in range(across):
            part = b.slice(band, outer + 1, j, j + (columns - 1) * steps[1] + 1, steps[1])
            total = part if total is None else b.add(total, part)
    assert total is not None
    return divide(b, total, down * across if divisor_override is None else divisor_override)


@decomposition(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    b: Builder, grad: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    """Each window's gradient shared out, where windows neither overlap nor leave the image."""
    kernel = _pair(kernel_size)
    if (
        (stride and _pair(stride) != kernel)
        or _pair(padding) != (0, 0)
        or divisor_override is not None
    ):
        return NotImplemented
    rows, columns = grad.spec.shape[-2:]
    height, width = x.spec.shape[-2:]
    inner = rows * kernel[0], columns * kernel[1]
    if ceil_mode and not (sizes.eq(inner[0], height) and sizes.eq(inner[1], width)):
        return NotImplemented
    share = _window_spread(b, b.widen(grad), *inner)
    outer = [0] * (x.spec.ndim - 2)
    return b.pad(share, (*outer, 0, 0), (*outer, height - inner[0], width - inner[1]), 0.0)
