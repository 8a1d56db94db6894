"""Max pooling: the places of every window compared one after another.

    max_pool1d(x, 2)  ->  first, second = x[0::2], x[1::2];  values = maximum(second, first);
                      indices = 2 * i + (second > first)

As in eager, the first of equal elements is taken, and the last NaN if there is one.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.windows import (
    LARGEST_UNROLLED,
    Windows,
    at_places,
    at_taps,
    begins,
    even_windows,
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


def max_pool(
    b: Builder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False, *, ndim: int,
) -> Any:  # fmt: skip
    """Maxima of windows of the last `ndim` dims, and their indices in the plane or volume."""
    windows = windows_of(x.spec, b.result, ndim, kernel_size, stride, padding, dilation, ceil_mode)
    if windows is None or prod(window.kernel for window in windows) > LARGEST_UNROLLED:
        return NotImplemented
    return _maxima(b, x, windows)


def max_pool_backward(
    b: Builder, grad: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, indices: Value, *, ndim: int,
) -> Any:  # fmt: skip
    """For each place the gradients of those windows whose greatest element it is."""
    arguments = (kernel_size, stride, padding, dilation, ceil_mode)
    return _gathered(b, grad, indices, windows_of(x.spec, grad.spec, ndim, *arguments))


def adaptive_max_pool_backward(
    b: Builder, grad: Value, x: Value, indices: Value, *, ndim: int
) -> Any:
    """Each window's gradient at its greatest element."""
    windows = even_windows(x.spec.shape[-ndim:], grad.spec.shape[-ndim:])
    return _gathered(b, grad, indices, windows)


for _ndim, _forward, _backward, _adaptive_backward in (
    (2, aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward,
     aten.adaptive_max_pool2d_backward),
    (3, aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward,
     aten.adaptive_max_pool3d_backward),
):  # fmt: skip
    decomposition(_forward.default)(partial(max_pool, ndim=_ndim))
    decomposition(_backward.default)(partial(max_pool_backward, ndim=_ndim))
    decomposition(_adaptive_backward.default)(partial(adaptive_max_pool_backward, ndim=_ndim))


@decomposition(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(b: Builder, x: Value, output_size: Sequence[Size]) -> Any:
    """Maxima over an even division: compared one by one if they are few, else reduced."""
    ndim = len(output_size)
    windows = even_windows(x.spec.shape[-ndim:], output_size)
    if windows is None:
        return NotImplemented
    if prod(window.kernel for window in windows) <= LARGEST_UNROLLED:
        return _maxima(b, x, windows)
    return _folded_maxima(b, x, windows)


# Forward


def _maxima(b: Builder, x: Value, windows: tuple[Windows, ...]) -> tuple[Value, Value]:
    """The greatest element of each window over the last dims, and its row-major index in them."""
    x = b.widen(x)
    scales: list[Size] = [1]
    for window in reversed(windows[1:]):
        scales.insert(0, scales[0] * window.size)
    dtype = index_dtype(*(window.size + 2 * window.pad for window in windows))
    best: Value | None = None
    tap: Value | None = None  # the number of the window's greatest element so far
    for number, taps in enumerate(product(*(range(window.kernel) for window in windows))):
        element = at_taps(b, x, windows, taps, _least(x.spec.dtype))
        if best is None:
            best = (
                b.tensor(_least(x.spec.dtype), b.result, x.spec.dtype)
                if element is None
                else element
            )
            tap = _first_tap(b, windows, b.result.shape, x.spec.device)
        elif element is not None:
            assert tap is not None
            tap = b.where(b.gt(element, best), number, tap)
            if x.spec.dtype.is_floating_point:
                tap = b.where(b.isnan(element), number, tap)
            best = b.maximum(element, best)
    assert best is not None and tap is not None
    tap = b.cast(tap, torch.int8)  # a backward keeps this
    place = _place(b, tap, windows, scales, dtype)
    b.facts[place] = (tap, windows)
    return best, place


def _place(
    b: Builder, tap: Value, windows: Sequence[Windows], scales: Sequence[Size], dtype: torch.dtype
) -> Value:
    """The row-major index in the image of a tap of each window."""
    rest = b.cast(tap, dtype)
    total: Value | None = None
    lead = tap.spec.ndim - len(windows)
    for number in reversed(range(len(windows))):
        window, scale = windows[number], scales[number]
        above = b.trunc_divide(rest, window.kernel) if number else None
        own = rest if above is None else b.sub(rest, b.mul(above, window.kernel))
        begin = begins(b, window, scale, dtype, tap.spec.device)
        step = b.add(
            b.mul(own, scale * window.dilation), b.along(begin, (lead + number,), tap.spec.shape)
        )
        total = step if total is None else b.add(total, step)
        rest = rest if above is None else above
    assert total is not None
    return b.cast(total, torch.int64)


def _least(dtype: torch.dtype) -> float:
    """What no element is less than."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _first_tap(
    b: Builder, windows: Sequence[Windows], shape: tuple[Size, ...], device: torch.device
) -> Value:
    """The number of each window's first tap in the image: above 0 in the padding."""
    total = b.full(shape, 0, torch.int32, device)
    inner = 1
    for number, window in reversed(list(enumerate(windows))):
        if window.pad > 0:
            missing = b.iota(window.count, window.pad, -window.step, torch.int32, device)
            first = b.maximum(missing, 0)
            if window.dilation > 1:
                first = b.floor_divide(b.add(first, window.dilation - 1), window.dilation)
            first = b.mul(first, inner)
            total = b.add(total, b.along(first, (len(shape) - len(windows) + number,), shape))
        inner *= window.kernel
    return total


def _folded_maxima(b: Builder, x: Value, windows: tuple[Windows, ...]) -> tuple[Value, Value]:
    """_maxima of windows that divide x's last dims, of any size: reductions over each window."""
    lead, ndim = x.spec.ndim - len(windows), len(windows)
    split: list[Size] = []
    for window in windows:
        split += [window.count, window.kernel]
    order = (*range(lead), *range(lead, lead + 2 * ndim, 2), *range(lead + 1, lead + 2 * ndim, 2))
    shape = b.result.shape
    count = prod(window.kernel for window in windows)
    x = b.reshape(
        b.permute(b.reshape(b.widen(x), (*x.spec.shape[:lead], *split)), order), (*shape, count)
    )
    dim = len(shape)
    place = b.argmax(x, dim)
    if x.spec.dtype.is_floating_point:  # argmax takes the first NaN
        steps = b.along(b.iota(count, 0, 1, torch.int64, x.spec.device), (dim,), x.spec.shape)
        place = b.maximum(place, b.amax(b.where(b.isnan(x), steps, -1), (dim,)))
    total: Value | None = None
    scale: Size = 1
    for number in reversed(range(ndim)):
        window = windows[number]
        begin = begins(b, window, scale, torch.int64, x.spec.device)
        inside = place if number == 0 else b.remainder(place, window.kernel)
        part = b.add(b.mul(inside, scale), b.along(begin, (lead + number,), shape))
        total = part if total is None else b.add(total, part)
        place = b.floor_divide(place, window.kernel)
        scale = scale * window.size
    assert total is not None
    return b.amax(x, (dim,)), total


# Backward


def _gather_pays(result: Spec, windows: Sequence[Windows]) -> bool:
    """Whether gathering beats eager's kernel, which scatters: not on a CPU where windows overlap
    along rows that are contiguous in memory, since each index, an int64, is then compared several
    times in vectors of few lanes.
    """
    overlaps = prod(map(overlap, windows))
    in_rows = sizes.known_eq(result.stride[-1], 1)
    if overlaps > 1 and in_rows and result.device.type == "cpu":
        return False
    return overlaps <= LARGEST_UNROLLED


def _gathered(b: Builder, grad: Value, indices: Value, windows: tuple[Windows, ...] | None) -> Any:
    """The gradient: in the order of the windows, as eager adds them up."""
    if windows is None or not _gather_pays(b.result, windows):
        return NotImplemented
    known = b.facts.get(indices)
    if known is not None and known[1] == windows and all(w.dilation == 1 for w in windows):
        return _gathered_at_taps(b, b.widen(grad), known[0], windows)
    grad = b.widen(grad)
    shape = b.result.shape
    lead = len(shape) - len(windows)
    dtype = index_dtype(*(window.size for window in windows))
    indices = b.cast(indices, dtype)
    scale: Size = 1
    places = []
    for number, window in reversed(list(enumerate(windows))):
        along = b.iota(window.size, 0, scale, dtype, grad.spec.device)
        places.append(b.along(along, (lead + number,), shape))
        scale = scale * window.size
    place = places[0]
    for other in places[1:]:
        place = b.add(place, other)
    total = None
    for back in product(*(range(overlap(window) - 1, -1, -1) for window in windows)):
        index, share = (
            at_places(b, y, windows, back, outside) for y, outside in ((indices, -1), (grad, 0.0))
        )
        if index is not None and share is not None:
            part = b.where(b.eq(index, place), share, 0.0)
            total = part if total is None else b.add(total, part)
    return b.full(shape, 0.0, grad.spec.dtype, grad.spec.device) if total is None else total


NO_TAP = -4096
"""What is added for a dim along which a window does not reach a place."""


def _gathered_at_taps(b: Builder, grad: Value, taps: Value, windows: tuple[Windows, ...]) -> Value:
    """The gradient, where the number of the tap that was greatest in each window is known: a place
    compares it with the number that it has in the window itself.
    """
    shape = b.result.shape
    lead = len(shape) - len(windows)
    device = grad.spec.device
    total = None
    for back in product(*(range(overlap(window) - 1, -1, -1) for window in windows)):
        tap, share = (
            at_places(b, y, windows, back, outside) for y, outside in ((taps, -1), (grad, 0.0))
        )
        if tap is None or share is None:
            continue
        own, inner = None, 1
        for number, (window, skipped) in reversed(list(enumerate(zip(windows, back, strict=True)))):
            place = b.iota(window.size, window.pad, 1, torch.int32, device)
            offset = b.add(b.remainder(place, window.step), skipped * window.step)
            reached = b.lt(offset, window.kernel)
            offset = b.where(reached, b.mul(offset, inner), NO_TAP)
            along = b.along(offset, (lead + number,), shape)
            own = along if own is None else b.add(own, along)
            inner *= window.kernel
        assert own is not None
        part = b.where(b.eq(b.cast(tap, torch.int32), own), share, 0.0)
        total = part if total is None else b.add(total, part)
    return b.full(shape, 0.0, grad.spec.dtype, device) if total is None else total
