"""Shape rules of indexing and moving: gather, scatter, index_put, embedding, cat, pad, roll."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.held_numbers import refuse_overflow
from flambeau_prims.promotion import Number, Operand, dtype_name, result_type
from flambeau_prims.rules.overloads import in_place, overloads
from flambeau_prims.rules.registry import rule
from flambeau_prims.rules.view import expand, slice_, transposed, unsqueeze, view_stride
from flambeau_prims.sizes import eq, ge, gt, le, lt
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import (
    broadcast_shapes,
    elementwise_layout,
    is_empty,
    preserved_stride,
    same_shape,
    stride_for,
    suggested_format,
    wrap_dim,
    wrap_dims,
)
from flambeau_prims.unsupported import DataDependent, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten

_INDEX_DTYPES = (torch.int64, torch.int32)


def _check_index_dtype(
    name: str, index: Spec, allowed: Sequence[torch.dtype] = (torch.int64,)
) -> None:
    if index.dtype not in allowed:
        raise RuntimeError(
            f"{name}(): Expected dtype int64 for index, but got {dtype_name(index.dtype)}"
        )


# 1. Advanced indexing


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self: Spec, indices: Sequence[Spec | None]) -> Spec:
    """A loop over self, its indexed dimensions replaced at stride 0 by those of the indices."""
    source, shape, layouts = _indexed(self, indices)
    if shape is None:
        return self.fresh(stride=preserved_stride(self))
    out_shape, out_stride = elementwise_layout([(shape, source), *layouts])
    return self.fresh(out_shape, out_stride)


def _indexed(
    self: Spec, indices: Sequence[Spec | None]
) -> tuple[
    tuple[Size, ...], tuple[Size, ...] | None, list[tuple[tuple[Size, ...], tuple[Size, ...]]]
]:
    """Strides and shape of self, indexed dims replaced, and the layouts of the indices."""
    if not indices:
        raise IndexError("at least one index must be provided")
    if len(indices) > self.ndim:
        raise IndexError(
            f"too many indices for tensor of dimension {self.ndim} (got {len(indices)})"
        )
    given = {dim: spec for dim, spec in enumerate(indices) if spec is not None}
    for spec in given.values():
        if spec.dtype in (torch.bool, torch.uint8):
            raise DataDependent(
                "the shape of an index by a mask depends on the mask's contents", aten.index.Tensor
            )
        if spec.dtype not in _INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if not given:
        return self.stride, None, []
    try:
        replacement = broadcast_shapes(*(spec.shape for spec in given.values()))
    except RuntimeError:
        shapes = ", ".join(str(list(spec.shape)) for spec in given.values())
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    dims = sorted(given)
    kept = [dim for dim in range(self.ndim) if dim not in given]
    adjacent = dims[-1] - dims[0] + 1 == len(dims)
    before = [dim for dim in kept if adjacent and dim < dims[0]]
    after = kept[len(before) :]
    if any(eq(self.shape[dim], 0) for dim in dims) and not any(eq(size, 0) for size in replacement):
        raise IndexError("index is out of bounds for dimension with size 0")
    shape = (*(self.shape[d] for d in before), *replacement, *(self.shape[d] for d in after))
    source = (
        *(self.stride[d] for d in before),
        *((0,) * len(replacement)),
        *(self.stride[d] for d in after),
    )
    layouts = [_indexer_layout(given[dim], replacement, len(before), len(after)) for dim in dims]
    if self.device.type != "cpu" and len(set(layouts)) > 1:
        layouts = [(layout[0], contiguous_stride(layout[0])) for layout in layouts]
    return source, shape, layouts


def _indexer_layout(
    spec: Spec, replacement: tuple[Size, ...], before: int, after: int
) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """An index expanded to the common shape, then viewed with dimensions of size 1 around it."""
    expanded = expand(spec, replacement)
    shape = (*((1,) * before), *replacement, *((1,) * after))
    stride = view_stride(expanded.shape, expanded.stride, shape)
    return shape, contiguous_stride(shape) if stride is None else stride


@rule(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(self: Spec, indices: Sequence[Spec | None], values: Spec) -> Spec:
    """A copy of self with the indexed elements replaced."""
    return index_put_(self, indices, values).fresh(stride=preserved_stride(self))


@rule(aten.index_put_.default, aten._index_put_impl_.default)
def index_put_(self: Spec, indices: Sequence[Spec | None], values: Spec) -> Spec:
    """self."""
    if self.dtype != values.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got "
            f"{dtype_name(self.dtype)} for the "
            f"destination and {dtype_name(values.dtype)} for the source."
        )
    if any(spec is not None and spec.dtype in (torch.bool, torch.uint8) for spec in indices):
        return self
    _, shape, _ = _indexed(self, indices)
    if shape is not None and not same_shape(broadcast_shapes(values.shape, shape), shape):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be "
            f"broadcast to indexing result of shape {list(shape)}"
        )
    return self


@rule(aten._unsafe_masked_index.default)
def unsafe_masked_index(self: Spec, indices: Sequence[Spec | None]) -> Spec:
    """As index, with a fill where the mask is false."""
    return index(self, indices)


@rule(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    self: Spec, mask: Spec, indices: Sequence[Spec | None], values: Spec
) -> Spec:
    """As index_put, of nothing where the mask is false."""
    shape = broadcast_shapes(values.shape, mask.shape)
    return index_put(self, indices, values.fresh(shape))


# 2. Gather and scatter along a dimension


@rule(aten.gather.default)
def gather(self: Spec, dim: int, index: Spec) -> Spec:
    """Row-major, with the index's shape."""
    _check_along("gather", self, dim, index)
    return self.fresh(index.shape)


def _check_along(name: str, self: Spec, dim: int, index: Spec, src: Spec | None = None) -> None:
    axis = wrap_dim(dim, self.ndim)
    if any(eq(size, 0) for size in index.shape):
        return  # of any dtype and number of dims
    _check_index_dtype(name, index, _INDEX_DTYPES)
    if max(index.ndim, 1) != max(self.ndim, 1):
        what = "input" if name == "gather" else "self"
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {what} tensor")
    for d in range(self.ndim):
        if d != axis and index.ndim and gt(index.shape[d], self.shape[d]):
            raise RuntimeError(
                f"Size does not match at dimension {d} expected index {list(index.shape)} to be no "
                f"larger than self {list(self.shape)} apart from dimension {dim}"
            )
        if src is None or not (src.ndim and index.ndim):
            continue
        if gt(index.shape[d], src.shape[wrap_dim(d, src.ndim)]):
            raise RuntimeError(
                f"Expected index {list(index.shape)} to be no larger than src "
                f"{list(src.shape)} in all dimensions"
            )
    if src is not None and max(src.ndim, 1) != max(self.ndim, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")


@in_place(*overloads("scatter_"), aten.scatter_add_.default)
@rule(*overloads("scatter"), aten.scatter_add.default)
def scatter(
    self: Spec, dim: int, index: Spec, src: Operand = 0, value: Number | None = None
) -> Spec:
    """A row-major copy of self with elements replaced or added to, or replaced by a number."""
    if not is_empty(index.shape):
        refuse_overflow(self, value)
    source = src if isinstance(src, Spec) else None
    if source is not None and source.dtype != self.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    _check_along("scatter", self, dim, index, source)
    return self.fresh()


@in_place(aten.scatter_reduce_.two)
@rule(aten.scatter_reduce.two)
def scatter_reduce(self: Spec, dim: int, index: Spec, src: Spec, reduce: str) -> Spec:
    """A row-major copy of self with elements reduced into it."""
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}"
        )
    return scatter(self, dim, index, src)


@rule(aten.index_select.default)
def index_select(self: Spec, dim: int, index: Spec) -> Spec:
    """Row-major; one dimension takes the index's length."""
    axis = wrap_dim(dim, self.ndim)
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    _check_index_dtype("index_select", index, _INDEX_DTYPES)
    if not self.shape:
        return self.fresh(())
    return self.fresh((*self.shape[:axis], index.numel, *self.shape[axis + 1 :]))


@rule(aten.index_select_backward.default)
def index_select_backward(grad: Spec, self_sizes: Sizes) -> Spec:
    """Zeros with the gradient added at the index."""
    return grad.fresh(self_sizes)


def _check_index_write(name: str, self: Spec, dim: int, index: Spec, source: Operand) -> None:
    axis = wrap_dim(dim, self.ndim)
    if index.ndim > 1:
        if name == "index_fill":
            raise RuntimeError("Index has to be a vector/scalar")
        raise IndexError(
            f"{name}_(): Index is supposed to be a vector, but got dim: {index.ndim} with type: "
            f"{dtype_name(index.dtype)} and size: {list(index.shape)}"
        )
    _check_index_dtype(name, index, _INDEX_DTYPES)
    if not isinstance(source, Spec) or not source.shape:
        return
    if name == "index_copy" and self.shape and source.ndim != self.ndim:
        raise IndexError(
            f"{name}_(): When source and destination are not scalars, their dimensionality "
            f"must match. Source dimensionality "
            f"({source.ndim}), destination dimensionality ({self.ndim})"
        )
    if source.dtype != self.dtype:
        raise RuntimeError(
            f"{name}(): self and source expected to have the same dtype, but got (self) "
            f"{dtype_name(self.dtype)} and (source) {dtype_name(source.dtype)}"
        )
    wanted = (
        (*self.shape[:axis], index.numel, *self.shape[axis + 1 :]) if self.shape else source.shape
    )
    if axis < source.ndim and self.shape and not eq(source.shape[axis], index.numel):
        raise RuntimeError(
            f"{name}_(): Number of indices ({index.numel}) should be equal to "
            f"source.size(dim): ({source.shape[axis]}), for dim: {axis}"
        )
    if not same_shape(source.shape, wanted):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
        )


@in_place(aten.index_add_.default)
@rule(aten.index_add.default)
def index_add(self: Spec, dim: int, index: Spec, source: Spec) -> Spec:
    """A row-major copy of self with parts added."""
    _check_index_write("index_add", self, dim, index, source)
    return self.fresh()


@in_place(aten.index_copy_.default)
@rule(aten.index_copy.default)
def index_copy(self: Spec, dim: int, index: Spec, source: Spec) -> Spec:
    """A row-major copy of self with parts replaced."""
    _check_index_write("index_copy", self, dim, index, source)
    return self.fresh()


@rule(aten.index_reduce.default)
def index_reduce(self: Spec, dim: int, index: Spec, source: Spec) -> Spec:
    """A row-major copy of self with parts reduced into it."""
    _check_index_write("index_reduce", self, dim, index, source)
    return self.fresh()


@rule(*overloads("index_fill"))
def index_fill(self: Spec, dim: int, index: Spec) -> Spec:
    """A copy of self with parts filled."""
    return index_fill_(self, dim, index).fresh(stride=preserved_stride(self))


@rule(*overloads("index_fill_"))
def index_fill_(self: Spec, dim: int, index: Spec) -> Spec:
    """self."""
    _check_index_write("index_fill", self, dim, index, 0)
    return self


@rule(aten.take.default)
def take(self: Spec, index: Spec) -> Spec:
    """Elements by their flat index: a row-major tensor of the index's shape."""
    _check_index_dtype("take", index)
    return self.fresh(index.shape)


@rule(aten.put.default)
def put(self: Spec) -> Spec:
    """A copy of self with elements replaced by flat index."""
    return self.fresh(stride=preserved_stride(self))


@in_place(aten.masked_scatter_.default)
@rule(aten.masked_scatter.default)
def masked_scatter(self: Spec, mask: Spec, source: Spec) -> Spec:
    """A row-major copy of self, expanded to the mask."""
    if mask.dtype != torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    return self.fresh(broadcast_shapes(self.shape, mask.shape))


# 3. Embedding


@rule(aten.embedding.default)
def embedding(weight: Spec, indices: Spec) -> Spec:
    """Rows of a table, row-major."""
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dtype not in _INDEX_DTYPES:
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got torch.{dtype_name(indices.dtype)}Tensor instead (while checking "
            "arguments for embedding)"
        )
    return weight.fresh((*indices.shape, weight.shape[1]))


@rule(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad_output: Spec, num_weights: Size) -> Spec:
    """The gradient of the table."""
    return grad_output.fresh((num_weights, grad_output.shape[-1]))


@rule(aten._embedding_bag.default)
def embedding_bag(
    weight: Spec,
    indices: Spec,
    offsets: Spec,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Spec | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Spec, Spec, Spec, Spec]:
    """The bags' sums (0), means (1) or maxima (2), each index's bag, the bags' sizes, and where the
    maxima stand.

    On a CPU the bags of indices are left out where the sums need none; elsewhere the maxima are,
    where there are none.
    """
    on_cpu = weight.device.type == "cpu"
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    width = weight.shape[1]
    unit = eq(weight.stride[1], 1) and (
        per_sample_weights is None or eq(per_sample_weights.stride[0], 1)
    )
    narrow = weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    fast_sum = on_cpu and mode == 0 and padding_idx < 0 and narrow and unit
    counted = bags if on_cpu else offsets.shape[0]

    def integers(shape: Sizes) -> Spec:
        return weight.fresh(shape, dtype=indices.dtype)

    where: tuple[Size, ...] = (bags, width) if mode == 2 else (counted,) if on_cpu else (0,)
    return (
        weight.fresh((bags, width)),
        integers((0,) if fast_sum else indices.shape),
        integers((counted,)),
        integers(where),
    )


@rule(aten._embedding_bag_forward_only.default)
def embedding_bag_forward_only(
    weight: Spec, indices: Spec, offsets: Spec, *options: Any
) -> tuple[Spec, Spec, Spec, Spec]:
    """As embedding_bag; where sums are taken, the sizes have a last offset's place too."""
    result, bags, sizes, where = embedding_bag(weight, indices, offsets, *options)
    if where.ndim == 1 and options[1:2] in ((), (0,)):
        sizes = sizes.replace(shape=offsets.shape)
        where = where if is_empty(where.shape) else sizes
    return result, bags, sizes, where


@rule(aten._embedding_bag_backward.default)
def embedding_bag_backward(grad: Spec, num_weights: Size, sparse: bool) -> Spec:
    """The gradient of the table."""
    if sparse:
        raise Unsupported("the sparse gradient of an embedding bag")
    return grad.fresh((num_weights, grad.shape[1]))


@rule(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_weights_backward(grad: Spec, indices: Spec) -> Spec:
    """The gradient of the weights, one for each index."""
    return grad.fresh(indices.shape)


# 4. Joining


@rule(aten.cat.default)
def cat(tensors: Sequence[Spec], dim: int = 0) -> Spec:
    """Joined along a dimension, in the memory format that all share."""
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    joined = [spec for spec in tensors if not (spec.ndim == 1 and eq(spec.shape[0], 0))]
    dtype = result_type(tensors)
    if not joined:
        wrap_dim(dim, tensors[0].ndim)
        return tensors[0].fresh((0,), dtype=dtype)
    for spec in tensors:
        if not spec.shape:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {tensors.index(spec)}) cannot be "
                f"concatenated"
            )
    first = joined[0]
    axis = wrap_dim(dim, first.ndim)
    length: Size = 0
    for spec in joined:
        if spec.ndim != first.ndim:
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {first.ndim} and {spec.ndim}"
            )
        for d in range(first.ndim):
            if d != axis and not eq(spec.shape[d], first.shape[d]):
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {axis}. Expected size "
                    f"{first.shape[d]} but got size "
                    f"{spec.shape[d]} for tensor number {tensors.index(spec)} in the list."
                )
        length = length + spec.shape[axis]
    formats = {suggested_format(spec) for spec in tensors}
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    stride = stride_for(shape, formats.pop() if len(formats) == 1 else None)
    return first.fresh(shape, stride, dtype=dtype)


@rule(aten.stack.default)
def stack(tensors: Sequence[Spec], dim: int = 0) -> Spec:
    """Joined along a new dimension."""
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    first = tensors[0]
    axis = wrap_dim(dim, first.ndim + 1)
    for position, spec in enumerate(tensors):
        if not same_shape(spec.shape, first.shape):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry "
                f"0 and {list(spec.shape)} at entry {position}"
            )
    if axis == first.ndim or is_empty(first.shape):
        return cat([unsqueeze(spec, axis) for spec in tensors], axis)
    # Joined along the old dimension `at`, which is then split: channels-last tensors stay so.
    joined = cat(tensors, axis)
    step = joined.stride[axis] * first.shape[axis]
    shape = (*first.shape[:axis], len(tensors), *first.shape[axis:])
    return joined.replace(shape=shape, stride=(*joined.stride[:axis], step, *joined.stride[axis:]))


# 5. Moving elements about


@rule(aten.constant_pad_nd.default)
def constant_pad_nd(self: Spec, pad: Sizes, value: Number) -> Spec:
    """Padded from the last dimension backwards, or cropped; in self's memory format."""
    if len(pad) % 2:
        raise RuntimeError(f"Length of pad must be even but instead it equals {len(pad)}")
    if len(pad) // 2 > self.ndim:
        raise RuntimeError(
            "Length of pad should be no more than twice the number of dimensions of the input. Pad "
            f"length is {len(pad)} while the input has {self.ndim} dimensions."
        )
    shape = list(self.shape)
    for position in range(len(pad) // 2):
        d = self.ndim - 1 - position
        size = shape[d] + pad[2 * position] + pad[2 * position + 1]
        cropped = any(
            lt(amount, 0) and lt(shape[d] + amount, 0)
            for amount in pad[2 * position : 2 * position + 2]
        )
        if cropped or lt(size, 0):
            raise RuntimeError(
                f"The input size {shape[d]}, plus negative padding {pad[2 * position]} and "
                f"{pad[2 * position + 1]} resulted "
                f"in a negative output size, which is invalid. Check dimension {d} of your input."
            )
        shape[d] = size
    if all(le(amount, 0) for amount in pad):
        return self.fresh(shape, preserved_stride(self.fresh(shape, self.stride)))
    result = self.fresh(shape, stride_for(tuple(shape), suggested_format(self)))
    refuse_overflow(result, value)
    return result


@rule(aten.roll.default)
def roll(self: Spec, shifts: Sizes, dims: Sequence[int] = ()) -> Spec:
    """Row-major, but where a CPU joins two slices of a channels_last tensor's dimension."""
    if (not dims and len(shifts) != 1) or (dims and len(dims) != len(shifts)):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
        )
    for dim in dims:
        wrap_dim(dim, self.ndim)
    if self.device.type != "cpu" or not dims:
        return self.fresh()
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        result = _rolled(result, shift, dim)
    return result


def _rolled(self: Spec, shift: Size, dim: int) -> Spec:
    size = self.shape[wrap_dim(dim, self.ndim)] if self.shape else 1
    if is_empty(self.shape):
        return self.fresh(stride=preserved_stride(self))
    if suggested_format(self) == torch.contiguous_format:
        return self.fresh()
    start = (size - shift) % size
    return cat([slice_(self, dim, start, size), slice_(self, dim, 0, start)], dim)


@rule(aten.flip.default)
def flip(self: Spec, dims: Sequence[int]) -> Spec:
    """A copy in self's layout."""
    wrap_dims(dims, self.ndim)
    return self.fresh(stride=preserved_stride(self))


@rule(aten.rot90.default)
def rot90(self: Spec, k: int = 1, dims: Sequence[int] = (0, 1)) -> Spec:
    """A plane turned by quarter turns."""
    first, second = wrap_dims(dims, self.ndim)
    if k % 4 == 0:
        return self.fresh()
    flipped = flip(self, (first, second))
    return transposed(flipped, first, second) if k % 2 else flipped


@rule(aten.repeat.default)
def repeat(self: Spec, repeats: Sizes) -> Spec:
    """Row-major."""
    if len(repeats) < self.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of "
            "dimensions of tensor"
        )
    padded = (1,) * (len(repeats) - self.ndim) + self.shape
    shape = [size * count for size, count in zip(padded, repeats, strict=True)]
    for count, size in zip(repeats, shape, strict=True):
        if lt(count, 0):
            raise RuntimeError(f"Trying to create tensor with negative dimension {size}: {shape}")
    return self.fresh(shape)


@rule(aten.repeat_interleave.self_int)
def repeat_interleave(self: Spec, repeats: Size, dim: int | None) -> Spec:
    """Each element repeated; flattened if no dimension is given."""
    if dim is None:
        return self.fresh((self.numel * repeats,))
    axis = wrap_dim(dim, self.ndim)
    return self.fresh((*self.shape[:axis], self.shape[axis] * repeats, *self.shape[axis + 1 :]))


@in_place(aten.tril_.default, aten.triu_.default)
@rule(aten.tril.default, aten.triu.default)
def tril(self: Spec, diagonal: Size = 0) -> Spec:
    """Row-major."""
    if self.ndim < 2:
        raise RuntimeError("tril: input tensor must have at least 2 dimensions")
    return self.fresh()


@rule(aten.diag_embed.default)
def diag_embed(self: Spec, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Spec:
    """The last dimension on the diagonal of two new ones: a view of a permuted tensor."""
    ndim = self.ndim + 1
    first, second = wrap_dim(dim1, ndim), wrap_dim(dim2, ndim)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    length = self.shape[-1] + abs(offset)
    rest = iter(self.shape[:-1])
    return self.fresh([length if d in (first, second) else next(rest) for d in range(ndim)])


@rule(aten.bincount.default, aten.nonzero.default, aten.masked_select.default)
def data_dependent() -> Spec:
    """The shape is in the data."""
    raise DataDependent("the shape of the result depends on the contents of a tensor")


@rule(aten.nonzero_static.default)
def nonzero_static(self: Spec, size: Size) -> Spec:
    """The places of so many elements, or fillers: row-major, on a GPU column-major."""
    if not ge(size, 0):
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    columns = contiguous_stride((self.ndim, size))
    stride = None if self.device.type == "cpu" else columns[::-1]
    return self.fresh((size, self.ndim), stride, torch.int64)


@rule(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output: Spec, sizes: Sizes) -> Spec:
    """The gradient of the source."""
    return grad_output.fresh(sizes)
