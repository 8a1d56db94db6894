"""Reading at computed places, joining, padding; and the gradients of slicing, which pad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.factory import row_and_column
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.decompositions.scan import reversed_scan
from flambeau_prims.decompositions.view import clamp_range
from flambeau_prims.graph import Value
from flambeau_prims.promotion import result_type
from flambeau_prims.strides import broadcast_shapes, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten


# Indirect reads


@decomposition(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """x at broadcast integer indices; masks, with data-dependent results, stay ATen's."""
    given = [item for item in indices if item is not None]
    if not given or any(item.spec.dtype in (torch.bool, torch.uint8) for item in given):
        return NotImplemented
    shape = broadcast_shapes(*[item.spec.shape for item in given])
    ready = [None if item is None else as_index(b, item, x, shape) for item in indices]
    while ready[-1] is None:
        ready.pop()
    return b.index(x, ready)


@decomposition(aten._unsafe_masked_index.default)
def unsafe_masked_index(
    b: Builder, x: Value, mask: Value, indices: Sequence[Value | None], fill: Any
) -> Any:
    """As index, and a number where the mask is false, whatever the indices are there."""
    if not sizes.likely_ge(x.spec.numel, 1):
        return NotImplemented
    inside: list[Value | None] = []
    for d, item in enumerate(indices):
        if item is not None:
            if item.spec.dtype in (torch.bool, torch.uint8):
                return NotImplemented
            size = x.spec.shape[d]
            item = b.minimum(b.maximum(b.cast(item, torch.int64), -size), size - 1)
        inside.append(item)
    read = index(b, x, inside)
    if read is NotImplemented or mask.spec.dtype is not torch.bool:
        return NotImplemented
    return b.where(b.expand(mask, read.spec.shape), read, b.tensor(fill, read.spec))


def as_index(b: Builder, item: Value, x: Value, shape: tuple[Size, ...]) -> Value:
    """An index tensor of int64, of the indices' common shape."""
    item = b.to_device(item, x.spec.device)
    return b.expand(b.cast(item, torch.int64), shape)


@decomposition(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    """Whole slices of one dim."""
    if not x.spec.shape:
        return b.reshape(x, b.result.shape)
    dim = wrap_dim(dim, x.spec.ndim)
    index = from_zero(b, b.reshape(index, (index.spec.numel,)), x.spec.shape[dim])
    return b.index(x, [*[None] * dim, index])


def from_zero(b: Builder, index: Value, size: Size) -> Value:
    """An int64 index that does not count from the end: a CPU checks it, so -1 is invalid."""
    index = b.cast(index, torch.int64)
    if index.spec.device.type != "cpu":
        return index
    return b.where(b.lt(index, 0), size, index)


@decomposition(aten.embedding.default)
def embedding(
    b: Builder,
    weight: Value,
    indices: Value,
    padding_idx: Size = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Rows of a table; the options concern the gradient only."""
    return b.index(weight, [from_zero(b, indices, weight.spec.shape[0])])


@decomposition(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """x at index along one dim."""
    if sizes.known_eq(index.spec.numel, 0):
        return b.full(index.spec.shape, 0, x.spec.dtype, x.spec.device)
    if not x.spec.shape or not index.spec.shape:
        row, places = (b.reshape(t, (t.spec.numel,)) for t in (x, index))
        read = b.gather(row, 0, b.cast(places, torch.int64))
        return b.reshape(read, index.spec.shape)
    return b.gather(x, wrap_dim(dim, x.spec.ndim), b.cast(index, torch.int64))


@decomposition(aten.take.default)
def take(b: Builder, x: Value, index: Value) -> Value:
    """Elements at flat indices."""
    return b.index(b.reshape(x, (x.spec.numel,)), [b.cast(index, torch.int64)])


@decomposition(aten.flip.default)
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Reversed along dims."""
    if not x.spec.shape:
        return x
    along = tuple(wrap_dim(d, x.spec.ndim) for d in dims)
    return reversed_scan(b, x, along) or b.flip(x, along)


@decomposition(aten.rot90.default)
def rot90(b: Builder, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    """Quarter turns from the first dim towards the second."""
    first, second = (wrap_dim(d, x.spec.ndim) for d in dims)
    order = list(range(x.spec.ndim))
    order[first], order[second] = order[second], order[first]
    if k % 4 == 2:
        return b.flip(x, (first, second))
    if k % 4 == 1:
        return b.permute(b.flip(x, (second,)), tuple(order))
    return b.flip(b.permute(x, tuple(order)), (second,)) if k % 4 == 3 else x


@decomposition(aten.one_hot.default)
def one_hot(b: Builder, x: Value, num_classes: int = -1) -> Any:
    """1 at each class along a new last dim."""
    if num_classes == -1:
        return NotImplemented
    shape = (*x.spec.shape, num_classes)
    places = b.along(
        b.iota(num_classes, 0, 1, torch.int64, x.spec.device), (len(shape) - 1,), shape
    )
    return b.cast(
        b.eq(places, b.spread(b.cast(x, torch.int64), (len(shape) - 1,), shape)), torch.int64
    )


@decomposition(aten.roll.default)
def roll(b: Builder, x: Value, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Value:
    """Rotated along dims; along all of them as one when none is named."""
    if sizes.eq(x.spec.numel, 0):
        return x
    shifts = [shifts] if isinstance(shifts, int) else shifts
    if not dims:
        (shift,) = shifts
        return b.reshape(_roll(b, b.reshape(x, (x.spec.numel,)), shift, 0), x.spec.shape)
    for shift, dim in zip(shifts, [dims] if isinstance(dims, int) else dims, strict=True):
        x = _roll(b, x, shift, wrap_dim(dim, x.spec.ndim))
    return x


def _roll(b: Builder, x: Value, shift: Size, dim: int) -> Value:
    size = x.spec.shape[dim]
    cut = (size - shift) % size
    if sizes.eq(cut, 0):
        return x
    return b.cat([b.slice(x, dim, cut, size, 1), b.slice(x, dim, 0, cut, 1)], dim)


# Joining and repeating


@decomposition(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Joined along a dim, in the common dtype; empty 1-d tensors are ignored, as in eager."""
    dtype = result_type([x.spec for x in tensors])
    kept = [x for x in tensors if not (x.spec.ndim == 1 and sizes.eq(x.spec.shape[0], 0))] or list(
        tensors[:1]
    )
    return b.cat([b.cast(x, dtype) for x in kept], wrap_dim(dim, kept[0].spec.ndim))


@decomposition(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Joined along a new dim."""
    dtype = result_type([x.spec for x in tensors])
    dim = wrap_dim(dim, tensors[0].spec.ndim + 1)
    return b.cat([b.unsqueeze(b.cast(x, dtype), dim) for x in tensors], dim)


@decomposition(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Sequence[Size]) -> Value:
    """Tiled: each dim split in (repeat, size), expanded, and joined again."""
    new = len(repeats) - x.spec.ndim
    shape = (*[1] * new, *x.spec.shape)
    x = b.reshape(x, shape)
    for d in reversed(range(len(repeats))):
        x = b.unsqueeze(x, d)
    wide = tuple(size for pair in zip(repeats, shape, strict=True) for size in pair)
    return b.reshape(b.expand(x, wide), b.result.shape)


@decomposition(aten.repeat_interleave.self_int)
def repeat_interleave(
    b: Builder, x: Value, repeats: Size, dim: int | None = None, *, output_size: Size | None = None
) -> Value:
    """Each place of one dim repeated in place."""
    if dim is None:
        x, dim = b.reshape(x, (x.spec.numel,)), 0
    dim = wrap_dim(dim, x.spec.ndim) + 1
    x = b.unsqueeze(x, dim)
    shape = x.spec.shape
    return b.reshape(b.expand(x, (*shape[:dim], repeats, *shape[dim + 1 :])), b.result.shape)


# Padding


@decomposition(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, x: Value, pad: Sequence[Size], value: Any = 0) -> Value:
    """`value` around x; negative amounts cut."""
    ndim = x.spec.ndim
    lows: list[Size] = [0] * ndim
    highs: list[Size] = [0] * ndim
    for i in range(len(pad) // 2):
        lows[ndim - 1 - i], highs[ndim - 1 - i] = pad[2 * i], pad[2 * i + 1]
    for d in range(ndim):
        size = x.spec.shape[d]
        start = -lows[d] if sizes.lt(lows[d], 0) else 0
        stop = size + highs[d] if sizes.lt(highs[d], 0) else size
        x = b.slice(x, d, start, stop, 1)
        lows[d] = 0 if sizes.lt(lows[d], 0) else lows[d]
        highs[d] = 0 if sizes.lt(highs[d], 0) else highs[d]
    if x.spec.dtype is torch.bool:
        value = bool(value)
    return b.pad(x, tuple(lows), tuple(highs), value)


@decomposition(aten.slice_backward.default)
def slice_backward(
    b: Builder,
    grad: Value,
    input_sizes: Sequence[Size],
    dim: int,
    start: Size,
    end: Size,
    step: Size,
) -> Value:
    """The gradient where the slice was, 0 elsewhere."""
    dim = wrap_dim(dim, len(input_sizes))
    return _embed(b, grad, dim, *clamp_range(start, end, input_sizes[dim]), step, input_sizes[dim])


def _embed(
    b: Builder, x: Value, dim: int, start: Size, stop: Size, step: Size, size: Size
) -> Value:
    """x at start, start + step, ... of a dim of `size`, zeros elsewhere."""
    length = x.spec.shape[dim]
    if not (isinstance(step, int) and step == 1):
        # Each place is followed by step - 1 zeros.
        x = b.unsqueeze(x, dim + 1)
        x = _pad_dim(b, x, dim + 1, 0, step - 1)
        shape = x.spec.shape
        x = b.reshape(x, (*shape[:dim], length * step, *shape[dim + 2 :]))
        room = size - start
        if sizes.gt(length * step, room):
            x = b.slice(x, dim, 0, room, 1)
    return _pad_dim(b, x, dim, start, size - start - x.spec.shape[dim])


def _pad_dim(b: Builder, x: Value, dim: int, low: Size, high: Size) -> Value:
    lows: list[Size] = [0] * x.spec.ndim
    highs: list[Size] = [0] * x.spec.ndim
    lows[dim], highs[dim] = low, high
    return b.pad(x, tuple(lows), tuple(highs), False if x.spec.dtype is torch.bool else 0)


@decomposition(aten.select_backward.default)
def select_backward(
    b: Builder, grad: Value, input_sizes: Sequence[Size], dim: int, index: Size
) -> Value:
    """The gradient at one place of a dim, 0 elsewhere."""
    dim = wrap_dim(dim, len(input_sizes))
    index = index + input_sizes[dim] if sizes.lt(index, 0) else index
    return _pad_dim(b, b.unsqueeze(grad, dim), dim, index, input_sizes[dim] - index - 1)


@decomposition(aten.diagonal_backward.default)
def diagonal_backward(
    b: Builder, grad: Value, input_sizes: Sequence[Size], offset: int, dim1: int, dim2: int
) -> Value:
    """The gradient on a diagonal, 0 elsewhere."""
    return _on_diagonal(b, grad, None, tuple(input_sizes), offset, dim1, dim2)


@decomposition(aten.diag_embed.default)
def diag_embed(b: Builder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """The last dim on a diagonal of zeros."""
    return _on_diagonal(b, x, None, b.result.shape, offset, dim1, dim2)


def _on_diagonal(
    b: Builder,
    source: Value,
    rest: Value | None,
    shape: tuple[Size, ...],
    offset: int,
    dim1: int,
    dim2: int,
) -> Value:
    """`source` on a diagonal of dims (dim1, dim2), `rest` (or zeros) elsewhere."""
    ndim = len(shape)
    dim1, dim2 = wrap_dim(dim1, ndim), wrap_dim(dim2, ndim)
    others = [d for d in range(ndim) if d not in (dim1, dim2)]
    order = (*others, dim1, dim2)
    moved = tuple(shape[d] for d in order)
    # Along the columns, the diagonal's element i is at column i + max(offset, 0).
    length = source.spec.shape[-1]
    low = offset if offset > 0 else 0
    wide = _pad_dim(b, source, len(others), low, moved[-1] - low - length)
    wide = b.expand(b.unsqueeze(wide, len(others)), moved)
    rows, columns = row_and_column(b, moved, source.spec.device)
    inside = b.eq(b.sub(columns, rows), offset)
    back = tuple(order.index(d) for d in range(ndim))
    elsewhere = (
        (False if source.spec.dtype is torch.bool else 0)
        if rest is None
        else b.permute(rest, order)
    )
    return b.permute(b.where(inside, wide, elsewhere), back)


# Writing a part into a copy of the whole


def _to_write(b: Builder, source: Value, x: Value) -> Value:
    """`source` with the dtype and on the device of `x`, as a copy into `x` makes it."""
    return b.cast(b.to_device(source, x.spec.device), x.spec.dtype)


@decomposition(aten.slice_scatter.default)
def slice_scatter(
    b: Builder,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Value:
    """x with a range of one dim replaced."""
    dim = wrap_dim(dim, x.spec.ndim)
    size = x.spec.shape[dim]
    start, stop = clamp_range(start, end, size)
    source = _to_write(b, source, x)
    part = (
        *x.spec.shape[:dim],
        source.spec.shape[dim]
        if source.spec.ndim == x.spec.ndim
        else (stop - start + step - 1) // step,
        *x.spec.shape[dim + 1 :],
    )
    source = b.expand(source, part)
    if isinstance(step, int) and step == 1:
        pieces = [b.slice(x, dim, 0, start, 1), source, b.slice(x, dim, stop, size, 1)]
        kept = [piece for piece in pieces if not sizes.eq(piece.spec.shape[dim], 0)]
        return b.cat(kept or pieces[:1], dim)
    wide = _embed(b, source, dim, start, stop, step, size)
    place = b.iota(size, 0, 1, torch.int64, x.spec.device)
    inside = b.bitwise_and(b.ge(place, start), b.lt(place, stop))
    inside = b.bitwise_and(inside, b.eq(b.remainder(b.sub(place, start), step), 0))
    return b.where(b.along(inside, (dim,), x.spec.shape), wide, x)


@decomposition(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: Size) -> Value:
    """x with one place of one dim replaced."""
    dim = wrap_dim(dim, x.spec.ndim)
    index = index + x.spec.shape[dim] if sizes.lt(index, 0) else index
    part = (*x.spec.shape[:dim], *x.spec.shape[dim + 1 :])
    source = b.unsqueeze(b.expand(_to_write(b, source, x), part), dim)
    return slice_scatter(b, x, source, dim, index, index + 1)


@decomposition(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: Builder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """x with a diagonal replaced."""
    return _on_diagonal(b, _to_write(b, source, x), x, x.spec.shape, offset, dim1, dim2)
