"""Sorts of short rows, and what selects from them by rank; long rows stay calls of ATen.

    values, indices = topk(x: f32[4096, 64], 4)   ->   values = prims.sort(x, 1, True, 4)
                                                       indices = prims.argsort(x, 1, True, 4)

On a CPU only whole sorts are kernels: eager's selections look at each element once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

LONGEST = {"cpu": 1024, "cuda": 512}
"""Longer rows are sorted by ATen. On a GPU a row of 1,024 in a sorting network takes longer than
eager's radix sort.
"""


def _is_short(x: Value, dim: int) -> bool:
    """Whether kernels sort along this dim: on a GPU a value and its position make 64 bits."""
    spec = x.spec
    size, device = spec.shape[dim], spec.device.type
    if not isinstance(size, int) or size > LONGEST.get(device, 0):
        return False
    return device == "cpu" or spec.dtype.itemsize <= 4


def _first(b: Builder, x: Value, dim: int, descending: bool, count: Size) -> tuple[Value, Value]:
    """The first of the sorted elements along a dim, and their indices."""
    return b.sort(x, dim, descending, count), b.argsort(x, dim, descending, count)


def _sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> Any:
    if not x.spec.shape:
        return x, b.full((), 0, torch.int64, x.spec.device)
    dim = wrap_dim(dim, x.spec.ndim)
    if not _is_short(x, dim):
        return NotImplemented
    return _first(b, x, dim, descending, x.spec.shape[dim])


@decomposition(aten.sort.default)
def sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> Any:
    """Values in their order, and where they stood."""
    return _sort(b, x, dim, descending)


@decomposition(aten.sort.stable)
def sort_stable(
    b: Builder, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """The same, equals in their order."""
    return _sort(b, x, dim, descending)


@decomposition(aten.argsort.default)
def argsort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> Any:
    """Where the sorted values stood."""
    result = _sort(b, x, dim, descending)
    return result if result is NotImplemented else result[1]


@decomposition(aten.argsort.stable)
def argsort_stable(
    b: Builder, x: Value, *, stable: bool, dim: int = -1, descending: bool = False
) -> Any:
    """Where the sorted values stood, equals in their order."""
    return argsort(b, x, dim, descending)


@decomposition(aten.msort.default)
def msort(b: Builder, x: Value) -> Any:
    """Sorted along the first dim."""
    result = _sort(b, x, 0)
    return result if result is NotImplemented else result[0]


@decomposition(aten.topk.default)
def topk(
    b: Builder, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """The k greatest or least along a dim, and their indices; always sorted."""
    if not x.spec.shape:
        shape = b.result.shape
        return b.reshape(x, shape), b.full(shape, 0, torch.int64, x.spec.device)
    dim = wrap_dim(dim, x.spec.ndim)
    if x.spec.device.type == "cpu" or not _is_short(x, dim) or not isinstance(k, int):
        return NotImplemented
    return _first(b, x, dim, largest, k)


# Selection by rank


def _select(b: Builder, x: Value, dim: int, rank: Any, keepdim: bool) -> tuple[Value, Value]:
    """The element of a rank (a number, or a Value for each row), and its index."""
    size, shape = x.spec.shape[dim], x.spec.shape
    values, indices = _first(b, x, dim, False, size)
    values = b.widen(values)
    places = b.along(b.iota(size, 0, 1, torch.int64, x.spec.device), (dim,), shape)
    wanted = b.eq(places, b.spread(rank, (dim,), shape) if isinstance(rank, Value) else rank)
    least = _least(values.spec.dtype)
    value = b.amax(b.where(wanted, values, least), (dim,))
    index = b.sum(b.where(wanted, indices, 0), (dim,))
    return tuple(b.restore(each, (dim,)) if keepdim else each for each in (value, index))  # type: ignore[return-value]


def _least(dtype: torch.dtype) -> Any:
    """The least value of a dtype."""
    if dtype is torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _selects(x: Value, dim: int) -> bool:
    """Whether kernels select along a dim."""
    return x.spec.device.type != "cpu" and _is_short(x, dim) and x.spec.shape[dim] > 0


@decomposition(aten.kthvalue.default)
def kthvalue(b: Builder, x: Value, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th least along a dim, and its index."""
    if not x.spec.shape or not isinstance(k, int):
        return NotImplemented
    dim = wrap_dim(dim, x.spec.ndim)
    if not _selects(x, dim) or not 0 < k <= x.spec.shape[dim]:
        return NotImplemented  # ATen refuses such a k
    return _select(b, x, dim, k - 1, keepdim)


def _median_along(
    b: Builder, x: Value, dim: int = -1, keepdim: bool = False, *, ignore_nan: bool
) -> Any:
    """The lower median along a dim, and its index: NaN, if any, or the median of the others."""
    if not x.spec.shape:
        return NotImplemented
    dim = wrap_dim(dim, x.spec.ndim)
    if not _selects(x, dim):
        return NotImplemented
    size = x.spec.shape[dim]
    if not x.spec.dtype.is_floating_point:
        return _select(b, x, dim, (size - 1) // 2, keepdim)
    wide = b.widen(x)
    nans = b.sum(b.cast(b.isnan(wide), torch.int64), (dim,))
    numbers = b.sub(size, nans)
    if ignore_nan:
        # Of NaN only, the first.
        rank = b.floor_divide(b.maximum(b.sub(numbers, 1), 0), 2)
    else:
        rank = b.where(b.gt(nans, 0), numbers, (size - 1) // 2)
    return _select(b, x, dim, rank, keepdim)


def _median(b: Builder, x: Value, *, ignore_nan: bool) -> Any:
    """The lower median of all elements."""
    count = x.spec.numel
    if not isinstance(count, int) or not x.spec.shape:
        return NotImplemented
    flat = b.reshape(x, (count,))
    result = _median_along(b, flat, 0, ignore_nan=ignore_nan)
    return result if result is NotImplemented else result[0]


for _name in ("median", "nanmedian"):
    _packet = getattr(aten, _name)
    decomposition(_packet.dim)(partial(_median_along, ignore_nan=_name == "nanmedian"))
    decomposition(_packet.default)(partial(_median, ignore_nan=_name == "nanmedian"))
