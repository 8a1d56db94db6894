"""Average pooling."""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.adaptive import adaptive_mean, adaptive_mean_backward
from flambeau_prims.decompositions.reduction import divide, mean
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.windows import (
    LARGEST_UNROLLED,
    Windows,
    at_places,
    at_taps,
    begins,
    index_dtype,
    overlap,
    windows_of,
)
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size, Spec

aten = torch.ops.aten


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
    """Means over a division of the places, even or not."""
    rows, columns = output_size
    if not _divides(rows, x.spec.shape[-2]) or not _divides(columns, x.spec.shape[-1]):
        return adaptive_mean(b, x, output_size)
    return _window_mean(b, b.widen(x), rows, columns)


@decomposition(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(b: Builder, grad: Value, x: Value) -> Any:
    """Each window's gradient shared out."""
    height, width = x.spec.shape[-2:]
    rows, columns = grad.spec.shape[-2:]
    if not _divides(rows, height) or not _divides(columns, width):
        return adaptive_mean_backward(b, grad, (height, width))
    return _window_spread(b, b.widen(grad), height, width)


@decomposition(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(b: Builder, x: Value, output_size: Sequence[Size]) -> Any:
    """Means over a division of a volume."""
    return adaptive_mean(b, x, output_size)


@decomposition(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(b: Builder, grad: Value, x: Value) -> Any:
    """Each window's gradient shared out."""
    return adaptive_mean_backward(b, grad, x.spec.shape[-3:])


def _divides(part: Size, whole: Size) -> bool:
    return not sizes.eq(part, 0) and sizes.eq(whole % part, 0)


def avg_pool(
    b: Builder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    *, ndim: int,
) -> Any:  # fmt: skip
    """Means over windows of the last `ndim` dims, by shifted slices; integers round toward 0."""
    windows = windows_of(x.spec, b.result, ndim, kernel_size, stride, padding, (1,), ceil_mode)
    if windows is None or any(window.kernel > LARGEST_UNROLLED for window in windows):
        return NotImplemented
    many = prod(window.kernel for window in windows) > LARGEST_UNROLLED
    if many and x.spec.device.type == "cpu" and not sizes.known_eq(b.result.stride[-1], 1):
        return NotImplemented  # eager's kernel adds up channels side by side
    x = b.widen(x)
    if not many:
        total = _window_sums(b, x, windows)
    else:  # dim by dim, through memory
        total = x
        for d in reversed(range(ndim)):
            rest = tuple(_single(size) for size in total.spec.shape[x.spec.ndim - ndim + d + 1 :])
            total = _window_sums(b, total, (windows[d], *rest))
    divisor = _divisor(b, x, total.spec.shape, windows, count_include_pad, divisor_override)
    if total.spec.dtype.is_floating_point:
        return divide(b, total, divisor)
    return b.trunc_divide(total, divisor)


def _window_sums(b: Builder, x: Value, windows: Sequence[Windows]) -> Value:
    """The sum over each window of the last dims."""
    total = None
    for taps in product(*(range(window.kernel) for window in windows)):
        element = at_taps(b, x, windows, taps, 0)
        if element is not None:
            total = element if total is None else b.add(total, element)
    assert total is not None
    return total


def _single(size: Size) -> Windows:
    """Windows of one place each."""
    return Windows(size, size, 1, 1, 0, 1, ceil=False)


def _divisor(
    b: Builder, x: Value, shape: tuple[Size, ...], windows: tuple[Windows, ...],
    include_pad: bool, given: int | None
) -> Any:  # fmt: skip
    """The divisor of the sums over windows: a number, or a tensor if borders count for less."""
    if given is not None:
        return given
    whole = 1
    counts: Value | None = None
    for number, window in enumerate(windows):
        if _is_whole(window, include_pad):
            whole *= window.kernel
            continue
        begin = begins(b, window, 1, torch.int64, x.spec.device)
        end = b.minimum(b.add(begin, window.kernel), window.size + window.pad)
        if not include_pad:
            begin, end = b.maximum(begin, 0), b.minimum(end, window.size)
        count = b.along(b.sub(end, begin), (len(shape) - len(windows) + number,), shape)
        counts = count if counts is None else b.mul(counts, count)
    if counts is None:
        return whole
    return b.cast(b.mul(counts, whole), x.spec.dtype)


def _is_whole(window: Windows, include_pad: bool) -> bool:
    """Whether every window counts with all its places."""
    last = (
        window.count - 1
    ) * window.step + window.kernel  # where the last one ends, from the padding's begin
    if include_pad:
        return not window.ceil or sizes.known_le(last, window.size + 2 * window.pad)
    return window.pad == 0 and (not window.ceil or sizes.known_le(last, window.size))


def avg_pool_backward(
    b: Builder, grad: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, *, ndim: int,
) -> Any:  # fmt: skip
    """For each place the sum of its windows' gradients, each shared out."""
    windows = windows_of(x.spec, grad.spec, ndim, kernel_size, stride, padding, (1,), ceil_mode)
    if windows is None or prod(map(overlap, windows)) > LARGEST_UNROLLED:
        return NotImplemented
    grad = b.widen(grad)
    divisor = _divisor(b, grad, grad.spec.shape, windows, count_include_pad, divisor_override)
    grad = divide(b, grad, divisor)
    total = None
    for back in product(*(range(overlap(window) - 1, -1, -1) for window in windows)):
        share = at_places(b, grad, windows, back, 0.0)
        if share is None:
            continue
        reached = _reached(b, windows, back, share.spec)
        if reached is not None:
            share = b.where(reached, share, 0.0)
        total = share if total is None else b.add(total, share)
    return total if total is not None else b.tensor(0.0, grad.spec)


def _reached(
    b: Builder, windows: tuple[Windows, ...], back: tuple[int, ...], spec: Spec
) -> Value | None:
    """The places that the windows of `at_places` reach; None if that is all."""
    result: Value | None = None
    for number, (window, skipped) in enumerate(zip(windows, back, strict=True)):
        left = (
            window.kernel - skipped * window.step
        )  # places of a step, from where windows begin, that it reaches
        if left >= window.step:
            continue
        dtype = index_dtype(window.size, window.pad)
        place = b.iota(window.size, window.pad, 1, dtype, spec.device)
        inside = b.lt(b.remainder(place, window.step), left)
        inside = b.along(inside, (spec.ndim - len(windows) + number,), spec.shape)
        result = inside if result is None else b.bitwise_and(result, inside)
    return result


for _ndim, _forward, _backward in (
    (2, aten.avg_pool2d, aten.avg_pool2d_backward),
    (3, aten.avg_pool3d, aten.avg_pool3d_backward),
):
    decomposition(_forward.default)(partial(avg_pool, ndim=_ndim))
    decomposition(_backward.default)(partial(avg_pool_backward, ndim=_ndim))
