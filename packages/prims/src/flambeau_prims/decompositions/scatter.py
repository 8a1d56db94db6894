"""Writing at computed places: index_put, scatter, index_add, and the gradients of gathers.

    embedding_dense_backward(grad, indices, 10, -1, False)
      ->  index_put(full([10, d], 0), [indices], grad, accumulate=True)

On a GPU sums are atomic additions, in any order and in float32 or wider; with deterministic
algorithms they stay ATen's. On a CPU they are added one after another, as eager adds them; what
eager shares out to threads stays ATen's if it is long, and no small part of a table.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import compute_dtype
from flambeau_prims.decompositions.index import as_index, from_zero
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.strides import broadcast_shapes, product, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

ADDED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
                   torch.int32})  # fmt: skip
"""The dtypes that are added up; float16 and bfloat16 in float32."""

SHORT = 1 << 15
"""On a CPU, so many elements are no work for threads."""

SPARSE = 4
"""On a CPU, a table with so many elements for each that is added: clearing it takes longer than to
add with one thread.
"""


def _scattered(
    b: Builder, x: Value, indices: Sequence[Value | None], source: Value, accumulate: bool,
    *, serial: bool = False,
) -> Any:  # fmt: skip
    """x with source at some places. `serial`: eager uses one thread on a CPU."""
    on_cpu = x.spec.device.type == "cpu"
    half = x.spec.dtype in (torch.float16, torch.bfloat16)
    if accumulate and (x.spec.dtype not in ADDED or (half and on_cpu)):
        return NotImplemented
    if on_cpu and not serial and not sizes.likely_ge(SHORT, source.spec.numel):
        return NotImplemented
    if not on_cpu and torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    if accumulate:
        x, source = b.widen(x), b.widen(source)
    return b.index_put(x, list(indices), source, accumulate)


# 1. At index tensors


@decomposition(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    """values at broadcast integer indices; one number where a mask holds."""
    given = [item for item in indices if item is not None]
    if not given or not x.spec.shape:
        return NotImplemented
    if any(item.spec.dtype in (torch.bool, torch.uint8) for item in given):
        return NotImplemented if accumulate else _filled(b, x, indices, values)
    shape = broadcast_shapes(*[item.spec.shape for item in given])
    ready = [None if item is None else as_index(b, item, x, shape) for item in indices]
    while ready[-1] is None:
        ready.pop()
    dims = [d for d, item in enumerate(ready) if item is not None]
    kept = [x.spec.shape[d] for d in range(x.spec.ndim) if d not in dims]
    axis = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    wanted = (*kept[:axis], *shape, *kept[axis:])
    values = b.to_device(values, x.spec.device)
    if values.spec.ndim > len(wanted):
        return NotImplemented
    return _scattered(b, x, ready, b.expand(values, wanted), accumulate, serial=accumulate)


def _filled(b: Builder, x: Value, indices: Sequence[Value | None], values: Value) -> Any:
    """x with one number where a mask over its leading dims holds."""
    (mask, *rest) = indices
    if (
        mask is None
        or rest
        or mask.spec.dtype is not torch.bool
        or values.spec.shape not in ((), (1,))
    ):
        return NotImplemented
    mask = b.to_device(mask, x.spec.device)
    mask = b.along(mask, tuple(range(mask.spec.ndim)), x.spec.shape)
    number = b.to_device(b.reshape(values, ()), x.spec.device)
    return b.where(mask, b.expand(number, x.spec.shape), x)


# 2. Along one dim


@decomposition(aten.index_add.default)
def index_add(
    b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Any:
    """Slices of source, times alpha, added to slices of x."""
    if not source.spec.dtype.is_floating_point:
        return NotImplemented
    if not x.spec.shape or not source.spec.shape:
        return _as_vectors(b, index_add, x, index, source, alpha=alpha)
    dim = wrap_dim(dim, x.spec.ndim)
    if not (isinstance(alpha, int) and alpha == 1):
        source = b.mul(b.widen(source), alpha)
        x = b.widen(x)
    return _scattered(b, x, _slices(b, x, dim, index), source, True, serial=True)


@decomposition(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Any:
    """Slices of source in place of slices of x."""
    if not x.spec.shape or not source.spec.shape:
        return _as_vectors(b, index_copy, x, index, source)
    dim = wrap_dim(dim, x.spec.ndim)
    return _scattered(b, x, _slices(b, x, dim, index), source, False)


@decomposition(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, index: Value, value: Any) -> Any:
    """A number in place of slices of x, which may be counted from the end."""
    if isinstance(value, Value):
        if value.spec.shape or value.spec.dtype is not x.spec.dtype:
            return NotImplemented  # eager's error, or its check that the number fits
        value = b.reshape(b.cast(b.to_device(value, x.spec.device), x.spec.dtype), ())
    elif not _fits(value, x.spec.dtype):
        return NotImplemented  # eager's error
    elif x.spec.dtype is torch.bool:
        value = bool(value)
    if not isinstance(value, Value):
        value = b.full((), value, x.spec.dtype, x.spec.device)
    shape = x.spec.shape
    x = x if shape else b.reshape(x, (1,))
    dim = wrap_dim(dim, x.spec.ndim)
    index = b.cast(b.reshape(index, (index.spec.numel,)), torch.int64)
    part = (*x.spec.shape[:dim], index.spec.numel, *x.spec.shape[dim + 1 :])
    result = _scattered(b, x, [*[None] * dim, index], b.expand(value, part), False)
    return result if shape or result is NotImplemented else b.reshape(result, ())


def _fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether ATen surely converts a number to a dtype without an error."""
    if not isinstance(value, (int, float)):
        return dtype.is_complex
    if dtype is torch.bool or dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return math.isfinite(value) and limits.min <= value <= limits.max


@decomposition(aten.put.default)
def put(b: Builder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Any:
    """source at, or added at, flat indices, which may be counted from the end."""
    fits = sizes.known_eq(index.spec.numel, source.spec.numel)
    if not fits or index.spec.dtype is not torch.int64 or x.spec.dtype is not source.spec.dtype:
        return NotImplemented  # eager judges
    flat = b.reshape(x, (x.spec.numel,))
    index = b.cast(b.reshape(index, (index.spec.numel,)), torch.int64)
    source = b.reshape(source, (source.spec.numel,))
    result = _scattered(b, flat, [index], source, accumulate)
    return result if result is NotImplemented else b.reshape(result, x.spec.shape)


def _as_vectors(
    b: Builder, function: Any, x: Value, index: Value, source: Value, **options: Any
) -> Any:
    """A write to places of one dim where some tensors are 0-dim: these are vectors of one."""
    if x.spec.ndim > 1 or source.spec.ndim > 1 or index.spec.ndim > 1:
        return NotImplemented
    if not sizes.known_eq(index.spec.numel, source.spec.numel):
        return NotImplemented
    shape = x.spec.shape
    x, index, source = (b.reshape(t, (t.spec.numel,)) for t in (x, index, source))
    result = function(b, x, 0, index, source, **options)
    return result if result is NotImplemented else b.reshape(result, shape)


def _slices(b: Builder, x: Value, dim: int, index: Value) -> list[Value | None]:
    index = from_zero(b, b.reshape(index, (index.spec.numel,)), x.spec.shape[dim])
    return [*[None] * dim, index]


@decomposition(aten.index_select_backward.default)
def index_select_backward(
    b: Builder, grad: Value, self_sizes: Sequence[Size], dim: int, index: Value
) -> Any:
    """For each slice the sum of the gradients of its copies."""
    if not self_sizes:
        return NotImplemented
    zeros = b.full(tuple(self_sizes), 0.0, compute_dtype(grad.spec.dtype), grad.spec.device)
    places = _slices(b, zeros, wrap_dim(dim, len(self_sizes)), index)
    return _scattered(b, zeros, places, b.widen(grad), True, serial=True)


@decomposition(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Any:
    """src added at index along one dim."""
    return _along_dim(b, x, dim, index, src, True)


@decomposition(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, x: Value, dim: int, index: Value, src: Value, reduce: str,
    *, include_self: bool = True,
) -> Any:  # fmt: skip
    """Reduced into what is there, or without it."""
    if not x.spec.shape or not index.spec.shape or not src.spec.shape:
        return _as_vectors(
            b, scatter_reduce, x, index, src, reduce=reduce, include_self=include_self
        )
    places, src = _along(b, x, dim, index, src)
    return _reduced(b, x, places, src, reduce, include_self=include_self)


@decomposition(aten.index_reduce.default)
def index_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str,
    *, include_self: bool = True,
) -> Any:  # fmt: skip
    """Slices of source reduced into slices of x, or into nothing."""
    if not x.spec.shape or not source.spec.shape:
        return _as_vectors(
            b, index_reduce, x, index, source, reduce=reduce, include_self=include_self
        )
    places = _slices(b, x, wrap_dim(dim, x.spec.ndim), index)
    return _reduced(b, x, places, source, reduce, include_self=include_self, serial=True)


@decomposition(aten.scatter.src)
def scatter(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Any:
    """src at index along one dim."""
    return _along_dim(b, x, dim, index, src, False)


@decomposition(aten.scatter.value)
def scatter_value(b: Builder, x: Value, dim: int, index: Value, value: Any) -> Any:
    """A number at index along one dim."""
    if x.spec.dtype is torch.bool:
        value = bool(value)
    src = b.full(index.spec.shape, value, x.spec.dtype, x.spec.device)
    return _along_dim(b, x, dim, index, src, False)


def _along_dim(b: Builder, x: Value, dim: int, index: Value, src: Value, accumulate: bool) -> Any:
    """src at, or added at, index along one dim and its own place along the others."""
    if not x.spec.shape or not index.spec.shape or not src.spec.shape:
        return _as_vectors(b, _along_dim, x, index, src, accumulate=accumulate)
    places, src = _along(b, x, dim, index, src)
    return _scattered(b, x, places, src, accumulate)


def _along(
    b: Builder, x: Value, dim: int, index: Value, src: Value
) -> tuple[list[Value | None], Value]:
    """The places of an index along one dim, and the part of the source that goes there."""
    dim = wrap_dim(dim, x.spec.ndim)
    shape = index.spec.shape
    for d, size in enumerate(shape):
        src = b.slice(src, d, 0, size, 1)
    places: list[Value | None] = [
        b.along(b.iota(size, 0, 1, torch.int64, x.spec.device), (d,), shape)
        for d, size in enumerate(shape)
    ]
    places[dim] = from_zero(b, index, x.spec.shape[dim])
    return places, src


def _reduced(
    b: Builder, x: Value, places: Sequence[Value | None], source: Value, reduce: str,
    *, include_self: bool, serial: bool = False,
) -> Any:  # fmt: skip
    """x with source reduced into some places; without what is there, from a neutral number."""
    dtype, result = x.spec.dtype, x
    if not include_self:
        number = _neutral(reduce, dtype)
        start = b.full(source.spec.shape, number, dtype, x.spec.device)
        result = _scattered(b, x, places, start, False, serial=serial)
        if result is NotImplemented:
            return NotImplemented
    if reduce in ("sum", "mean"):
        result = _scattered(b, result, places, source, True, serial=serial)
        if reduce == "sum" or result is NotImplemented:
            return result
        wide = compute_dtype(dtype)
        ones = b.full(source.spec.shape, 1, wide, x.spec.device)
        counts = b.full(x.spec.shape, 1 if include_self else 0, wide, x.spec.device)
        counts = b.index_put(counts, list(places), ones, True)
        counts = b.maximum(counts, 1)
        divide = b.div if dtype.is_floating_point else b.floor_divide
        return divide(result, counts)
    mode = {"prod": "mul", "amax": "max", "amin": "min"}[reduce]
    half = dtype in (torch.float16, torch.bfloat16)
    on_cpu = x.spec.device.type == "cpu"
    if not on_cpu or dtype is torch.bool or (half and mode == "mul"):
        return NotImplemented
    if not serial and not sizes.likely_ge(SHORT, source.spec.numel):
        return NotImplemented
    return b.index_reduce(b.widen(result), list(places), b.widen(source), mode)


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    """The number that changes nothing in a reduction."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    least = reduce == "amax"
    if dtype is torch.bool:
        return not least
    if dtype.is_floating_point:
        return -math.inf if least else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if least else limits.max


# 3. Tables


@decomposition(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, grad: Value, indices: Value, num_weights: Size, padding_idx: Size,
    scale_grad_by_freq: bool,
) -> Any:  # fmt: skip
    """For each row the sum of the gradients of its copies; the padding row gets none."""
    if scale_grad_by_freq or not indices.spec.shape:
        return NotImplemented
    width = grad.spec.shape[-1]
    zeros = b.full((num_weights, width), 0.0, compute_dtype(grad.spec.dtype), grad.spec.device)
    places = from_zero(b, indices, num_weights)
    grad = b.widen(b.reshape(grad, (*indices.spec.shape, width)))
    if not (isinstance(padding_idx, int) and padding_idx < 0):
        counted = b.along(
            b.ne(places, padding_idx), tuple(range(indices.spec.ndim)), grad.spec.shape
        )
        grad = b.where(counted, grad, 0.0)
    return add_rows(b, zeros, [places], grad)


def add_rows(b: Builder, table: Value, places: Sequence[Value], rows: Value) -> Any:
    """A table of zeros with rows, or their elements, added; a small part of one by one thread."""
    sparse = sizes.known_le(rows.spec.numel * SPARSE, table.spec.numel)
    return _scattered(b, table, places, rows, True, serial=sparse)


@decomposition(aten.max_unpool2d.default, aten.max_unpool3d.default)
def max_unpool(
    b: Builder, x: Value, indices: Value, output_size: Sequence[Size], *_windows: Any
) -> Any:
    """Elements at their places in the plane or volume, zeros elsewhere."""
    spatial = len(output_size)
    lead = x.spec.shape[: x.spec.ndim - spatial]
    rows, count = product(lead), product(x.spec.shape[len(lead) :])
    zeros = b.full(
        (rows, product(output_size)),
        False if x.spec.dtype is torch.bool else 0,
        x.spec.dtype,
        x.spec.device,
    )
    row = b.along(b.iota(rows, 0, 1, torch.int64, x.spec.device), (0,), (rows, count))
    place = from_zero(b, b.reshape(indices, (rows, count)), zeros.spec.shape[1])
    result = _scattered(b, zeros, [row, place], b.reshape(x, (rows, count)), False)
    return result if result is NotImplemented else b.reshape(result, (*lead, *output_size))
