"""Views: index maps over a tensor's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import memory_of, viewed_by
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.rules.view import view_stride
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten


@decomposition(
    aten.alias.default, aten.detach.default, aten.resolve_conj.default, aten.resolve_neg.default
)
def alias(b: Builder, x: Value) -> Value:
    """x."""
    return x


@decomposition(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.view_as.default,
    aten._reshape_alias.default, aten.flatten.using_ints, aten.view_copy.default,
    aten._reshape_copy.default,
)  # fmt: skip
def view(b: Builder, x: Value, *_sizes: Any, **_named: Any) -> Value:
    """Regrouped dims; the Spec of the result has the shape."""
    return b.reshape(x, b.result.shape)


@decomposition(aten.expand.default, aten.expand_copy.default)
def expand(b: Builder, x: Value, size: Sequence[Size], *, implicit: bool = False) -> Value:
    """Dims of size 1 repeated."""
    return b.expand(x, b.result.shape)


@decomposition(aten.permute.default, aten.permute_copy.default)
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
        wrap_dim(to, ndim): wrap_dim(origin, ndim)
        for origin, to in zip(source, destination, strict=True)
    }
    rest = iter(d for d in range(ndim) if d not in moved.values())
    return b.permute(x, tuple(moved[d] if d in moved else next(rest) for d in range(ndim)))


@decomposition(aten.unsqueeze.default)
def unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    """A new dim of size 1."""
    return b.unsqueeze(x, wrap_dim(dim, x.spec.ndim + 1))


@decomposition(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(b: Builder, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    """Those dims dropped that are of size 1, among all or among `dims`."""
    if not x.spec.shape:
        return x
    among = range(x.spec.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    wrapped = sorted({wrap_dim(d, x.spec.ndim) for d in among})
    return b.squeeze(x, tuple(d for d in wrapped if sizes.eq(x.spec.shape[d], 1)))


# Parts


def clamp_range(start: Size | None, end: Size | None, size: Size) -> tuple[Size, Size]:
    """A Python slice's bounds brought into 0 <= start <= stop <= size."""
    start = 0 if start is None else _clamped(start, size)
    stop = size if end is None else _clamped(end, size)
    return start, (stop if stop is size or sizes.ge(stop, start) else start)


_TO_THE_END = 2**62
"""An int bound from here on is `x[a:]` as C++ writes it: no size is so large."""


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
    b: Builder, x: Value, dim: int = 0, start: Size | None = None, end: Size | None = None,
    step: Size = 1,
) -> Value:  # fmt: skip
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


@decomposition(
    aten.split.Tensor, aten.unsafe_split.Tensor, aten.split_with_sizes.default,
    aten.unsafe_split_with_sizes.default, aten.chunk.default, aten.unsafe_chunk.default,
)  # fmt: skip
def split(b: Builder, x: Value, sizes_or_count: Any, dim: int = 0) -> list[Value]:
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


def _copies(x: Value) -> bool:
    """Whether a reshape between x and its memory copied: then x's strides do not describe it."""
    while (source := viewed_by(x)) is not None:
        if x.producer.op.name == "reshape":  # type: ignore[union-attr]
            if view_stride(source.spec.shape, source.spec.stride, x.spec.shape) is None:
                return True
        x = source
    return False


@decomposition(aten.as_strided.default)
def as_strided(
    b: Builder, x: Value, size: Sequence[Size], stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> Value:  # fmt: skip
    """A window on the memory that x lies in."""
    if _copies(x):
        return NotImplemented
    offset = x.spec.offset if storage_offset is None else storage_offset
    same_window = x.spec.shape == tuple(size) and x.spec.stride == tuple(stride)
    if same_window and sizes.known_eq(offset, x.spec.offset):
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


# Copies of views


@decomposition(aten.narrow_copy.default)
def narrow_copy(b: Builder, x: Value, dim: int, start: Size, length: Size) -> Value:
    """`length` places of one dim, from a start that may count from the end."""
    size = x.spec.shape[wrap_dim(dim, x.spec.ndim)]
    return narrow(b, x, dim, start + size if sizes.lt(start, 0) else start, length)


_COPIED: dict[str, Callable[..., Any]] = {
    "as_strided": as_strided, "diagonal": diagonal, "select": select, "slice": slice_,
    "split": split, "split_with_sizes": split, "squeeze": squeeze, "t": t, "transpose": transpose,
    "unbind": unbind, "unfold": unfold, "unsqueeze": unsqueeze,
}  # fmt: skip
for _name, _view in _COPIED.items():
    _packet = getattr(aten, f"{_name}_copy")
    decomposition(*(getattr(_packet, o) for o in _packet.overloads() if "out" not in o))(_view)
