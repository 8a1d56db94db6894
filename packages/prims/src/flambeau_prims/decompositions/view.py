"""Views: index maps over a tensor's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import memory_of
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.view import view_stride
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten


@decomposition(
    aten.alias.default, aten.detach.default, aten.resolve_conj.default, aten.resolve_neg.default
)
def alias(b: Builder, x: Value) -> Value:
    """x."""
    return x


@decomposition(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(b: Builder, x: Value, size: Sequence[Size]) -> Value:
    """Regrouped dims; the -1 is resolved in the result's Spec."""
    return b.reshape(x, b.result.shape)


@decomposition(aten.view_as.default)
def view_as(b: Builder, x: Value, other: Value) -> Value:
    """Regrouped dims."""
    return b.reshape(x, b.result.shape)


@decomposition(aten._reshape_alias.default)
def reshape_alias(b: Builder, x: Value, size: Sequence[Size], stride: Sequence[Size]) -> Value:
    """Regrouped dims."""
    return b.reshape(x, b.result.shape)


@decomposition(aten.flatten.using_ints)
def flatten(b: Builder, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Adjacent dims joined."""
    return b.reshape(x, b.result.shape)


@decomposition(aten.expand.default)
def expand(b: Builder, x: Value, size: Sequence[Size], *, implicit: bool = False) -> Value:
    """Dims of size 1 repeated."""
    return b.expand(x, b.result.shape)


@decomposition(aten.permute.default)
def permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Dims reordered."""
    return b.permute(x, tuple(wrap_dim(d, x.spec.ndim) for d in dims))


@decomposition(aten.t.default)
def t(b: Builder, x: Value) -> Value:
    """A matrix transposed; vectors stay."""
    return b.permute(x, (1, 0)) if x.spec.ndim == 2 else x


@decomposition(aten.transpose.int)
def transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    """Two dims exchanged."""
    order = list(range(x.spec.ndim))
    if order:
        first, second = wrap_dim(dim0, len(order)), wrap_dim(dim1, len(order))
        order[first], order[second] = order[second], order[first]
    return b.permute(x, tuple(order))


@decomposition(aten.movedim.intlist)
def movedim(b: Builder, x: Value, source: Sequence[int], destination: Sequence[int]) -> Value:
    """Dims moved to new places, the others in order around them."""
    ndim = x.spec.ndim
    moved = {
        wrap_dim(to, ndim): wrap_dim(at, ndim) for at, to in zip(source, destination, strict=True)
    }
    rest = iter(d for d in range(ndim) if d not in moved.values())
    return b.permute(x, tuple(moved[d] if d in moved else next(rest) for d in range(ndim)))


@decomposition(aten.unsqueeze.default)
def unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    """A new dim of size 1."""
    return b.unsqueeze(x, wrap_dim(dim, x.spec.ndim + 1))


@decomposition(aten.squeeze.default)
def squeeze(b: Builder, x: Value) -> Value:
    """All dims of size 1 dropped."""
    return _squeeze(b, x, range(x.spec.ndim))


@decomposition(aten.squeeze.dim)
def squeeze_dim(b: Builder, x: Value, dim: int) -> Value:
    """One dim dropped if of size 1."""
    return _squeeze(b, x, [dim])


@decomposition(aten.squeeze.dims)
def squeeze_dims(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Those dims dropped that are of size 1."""
    return _squeeze(b, x, dims)


def _squeeze(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    if not x.spec.shape:
        return x
    wrapped = sorted({wrap_dim(d, x.spec.ndim) for d in dims})
    return b.squeeze(x, tuple(d for d in wrapped if sizes.eq(x.spec.shape[d], 1)))


# Parts
# --------------------------------------------------------------------------------------------------


def clamp_range(start: Size | None, end: Size | None, size: Size) -> tuple[Size, Size]:
    """A Python slice's bounds brought into 0 <= start <= stop <= size."""
    start = 0 if start is None else _clamped(start, size)
    stop = size if end is None else _clamped(end, size)
    return start, (stop if stop is size or sizes.ge(stop, start) else start)


_TO_THE_END = 2**62
"""An int bound from here on is `x[a:]` as C++ writes it: no size is so large, and none needs a
guard to say so.
"""


def _clamped(place: Size, size: Size) -> Size:
    if isinstance(place, int) and place == 0:
        return 0
    if isinstance(place, int) and place >= _TO_THE_END:
        return size
    if sizes.lt(place, 0):
        place = place + size
        return place if sizes.ge(place, 0) else 0
    return place if sizes.known_le(place, size) or sizes.le(place, size) else size


@decomposition(aten.slice.Tensor)
def slice_(
    b: Builder,
    x: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Value:
    """A range of one dim."""
    dim = wrap_dim(dim, x.spec.ndim)
    return b.slice(x, dim, *clamp_range(start, end, x.spec.shape[dim]), step)


@decomposition(aten.narrow.default)
def narrow(b: Builder, x: Value, dim: int, start: Size, length: Size) -> Value:
    """`length` places of one dim."""
    return slice_(b, x, dim, start, start + length)


@decomposition(aten.select.int)
def select(b: Builder, x: Value, dim: int, index: Size) -> Value:
    """One place of one dim, which is dropped."""
    dim = wrap_dim(dim, x.spec.ndim)
    return b.select(x, dim, index + x.spec.shape[dim] if sizes.lt(index, 0) else index)


@decomposition(aten.unbind.int)
def unbind(b: Builder, x: Value, dim: int = 0) -> list[Value]:
    """Every place of one dim."""
    dim = wrap_dim(dim, x.spec.ndim)
    return [b.select(x, dim, i) for i in range(len(b.results))]


@decomposition(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(b: Builder, x: Value, split_size: Size, dim: int = 0) -> list[Value]:
    """Parts of one size, the last one shorter."""
    return _parts(b, x, dim)


@decomposition(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(
    b: Builder, x: Value, split_sizes: Sequence[Size], dim: int = 0
) -> list[Value]:
    """Parts of given sizes."""
    return _parts(b, x, dim)


@decomposition(aten.chunk.default, aten.unsafe_chunk.default)
def chunk(b: Builder, x: Value, chunks: int, dim: int = 0) -> list[Value]:
    """Parts of about one size."""
    return _parts(b, x, dim)


def _parts(b: Builder, x: Value, dim: int) -> list[Value]:
    """Consecutive ranges, of the results' sizes."""
    dim = wrap_dim(dim, x.spec.ndim)
    parts = []
    start: Size = 0
    for spec in b.results:
        assert spec is not None
        parts.append(b.slice(x, dim, start, start + spec.shape[dim], 1))
        start = start + spec.shape[dim]
    return parts


@decomposition(aten.diagonal.default)
def diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A diagonal of two dims, as the last dim."""
    return b.diagonal(x, offset, wrap_dim(dim1, x.spec.ndim), wrap_dim(dim2, x.spec.ndim))


# Windows on memory
# --------------------------------------------------------------------------------------------------


def _copies(x: Value) -> bool:
    """Whether a reshape on the way to x's memory had to copy, so that x's strides do not describe
    that memory.
    """
    while (
        x.producer is not None
        and isinstance(x.producer.op, Prim)
        and x.producer.op.kind is Kind.VIEW
    ):
        source = x.producer.args[0]
        if x.producer.op.name == "reshape" and not _is_view_reshape(source, x):
            return True
        x = source
    return False


def _is_view_reshape(source: Value, x: Value) -> bool:
    return view_stride(source.spec.shape, source.spec.stride, x.spec.shape) is not None


@decomposition(aten.as_strided.default)
def as_strided(
    b: Builder,
    x: Value,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> Value:
    """A window on the memory that x lies in."""
    if _copies(x):
        return NotImplemented
    offset = x.spec.offset if storage_offset is None else storage_offset
    if (
        x.spec.shape == tuple(size)
        and x.spec.stride == tuple(stride)
        and sizes.known_eq(offset, x.spec.offset)
    ):
        return x
    return b.as_strided(memory_of(x), tuple(size), tuple(stride), offset)


@decomposition(aten.unfold.default)
def unfold(b: Builder, x: Value, dimension: int, size: int, step: int) -> Any:
    """Windows of one dim, as a new last dim."""
    if _copies(x) or not x.spec.shape:
        return NotImplemented
    dim = wrap_dim(dimension, x.spec.ndim)
    stride = list(x.spec.stride)
    stride[dim] = x.spec.stride[dim] * step
    return b.as_strided(memory_of(x), b.result.shape, (*stride, x.spec.stride[dim]), x.spec.offset)
