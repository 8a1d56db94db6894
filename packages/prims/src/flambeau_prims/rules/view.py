"""Shape rules of views: results share self's memory, with their own strides and offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import complex_dtype, dtype_name, real_dtype, result_type
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import (
    Expr,
    as_int,
    ceil_div,
    eq,
    expect,
    ge,
    gt,
    known_eq,
    le,
    likely_eq,
    likely_ge,
    lt,
    size_max,
    size_min,
)
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import (
    is_dense,
    is_empty,
    preserved_stride,
    product,
    same_shape,
    wrap_dim,
    wrap_dims,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


def restrided(self: Spec, shape: Sizes, stride: Sizes, offset: Size | None = None) -> Spec:
    """A view of self at this geometry."""
    return Spec.of(
        shape,
        stride=stride,
        dtype=self.dtype,
        device=self.device,
        offset=self.offset if offset is None else offset,
    )


# 1. Same elements, same order of dimensions


@rule(
    aten.alias.default,
    aten.detach.default,
    aten.detach_.default,
    aten.lift_fresh.default,
    aten.view_as.default,
    aten._conj.default,
    aten._neg_view.default,
    aten._fw_primal.default,
)
def alias(self: Spec) -> Spec:
    """self's own geometry."""
    return self


def infer_size(shape: Sizes, numel: Size) -> tuple[Size, ...]:
    """The shape with its -1, if any, replaced so that it holds `numel` elements."""
    unknown = [dim for dim, size in enumerate(shape) if isinstance(size, int) and size == -1]
    if len(unknown) > 1:
        raise RuntimeError("only one dimension can be inferred")
    for size in shape:
        if isinstance(size, int) and size < -1:
            raise RuntimeError(f"invalid shape dimension {size}")
    error = f"shape '{list(shape)}' is invalid for input of size {numel}"
    if not unknown:
        if not eq(product(shape), numel):
            raise RuntimeError(error)
        return tuple(shape)
    axis = unknown[0]
    known = product([size for dim, size in enumerate(shape) if dim != axis])
    if eq(known, 0):
        if eq(numel, 0):
            raise RuntimeError(
                f"cannot reshape tensor of 0 elements into shape {list(shape)} because the "
                "unspecified dimension size -1 can be any value and is ambiguous"
            )
        raise RuntimeError(error)
    if known_eq(known, numel):
        inferred: Size = 1
    elif expect("==", numel % known, 0):
        inferred = numel // known
    else:
        raise RuntimeError(error)
    return tuple(inferred if dim == axis else size for dim, size in enumerate(shape))


def view_stride(old_shape: Sizes, old_stride: Sizes, shape: Sizes) -> tuple[Size, ...] | None:
    """Strides at which a tensor can be seen in another shape without a copy, or None."""
    if not old_shape:
        return (1,) * len(shape)
    if is_empty(tuple(old_shape)):
        if same_shape(tuple(old_shape), tuple(shape)):
            return tuple(old_stride)
        return contiguous_stride(shape)
    row_major = tuple(old_stride) == contiguous_stride(tuple(old_shape))
    if row_major and any(isinstance(size, Expr) and size.env.is_unbacked(size) for size in shape):
        return contiguous_stride(shape)
    stride: list[Size] = [0] * len(shape)
    axis = len(shape) - 1
    chunk_stride = old_stride[-1]
    chunk: Size = 1
    viewed: Size = 1
    for dim in range(len(old_shape) - 1, -1, -1):
        chunk = old_shape[dim] * chunk
        joins = dim > 0 and (
            likely_eq(old_shape[dim - 1], 1) or likely_eq(old_stride[dim - 1], chunk * chunk_stride)
        )
        if joins:
            continue
        while axis >= 0 and (not _fills(viewed, chunk) or likely_eq(shape[axis], 1)):
            stride[axis] = viewed * chunk_stride
            viewed = shape[axis] * viewed
            axis -= 1
        if not likely_eq(viewed, chunk):
            return None
        if dim > 0:
            chunk_stride = old_stride[dim - 1]
            chunk = viewed = 1
    return tuple(stride) if axis < 0 else None


def _fills(viewed: Size, chunk: Size) -> bool:
    """Whether a chunk is used up; of data-dependent sizes only if known to be equal."""
    difference = viewed - chunk
    if isinstance(difference, Expr) and difference.env.is_unbacked(difference):
        return known_eq(viewed, chunk)
    return likely_ge(viewed, chunk)


@rule(aten.view.default, aten._unsafe_view.default)
def view(self: Spec, size: Sizes) -> Spec:
    """Another shape over the same elements, if the strides allow it."""
    shape = infer_size(size, self.numel)
    stride = view_stride(self.shape, self.stride, shape)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return restrided(self, shape, stride)


@rule(aten._reshape_alias.default)
def reshape_alias(self: Spec, size: Sizes, stride: Sizes) -> Spec:
    """A view whose strides the caller has computed."""
    return restrided(self, size, stride)


@rule(aten._reshape_copy.default, aten.view_copy.default)
def reshape_copy(self: Spec, size: Sizes) -> Spec:
    """A row-major copy in another shape."""
    return self.fresh(infer_size(size, self.numel))


@rule(aten.view.dtype)
def view_dtype(self: Spec, dtype: torch.dtype) -> Spec:
    """The same bytes as another dtype; if item sizes differ, the last dimension changes."""
    old, new = self.dtype.itemsize, dtype.itemsize
    if old == new:
        return self.replace(dtype=dtype, stride=self.stride)
    if not self.shape:
        raise RuntimeError(
            f"self.dim() cannot be 0 to view {dtype_name(self.dtype)} as "
            f"{dtype_name(dtype)} (different element sizes)"
        )
    if not eq(self.stride[-1], 1):
        raise RuntimeError(
            f"self.stride(-1) must be 1 to view {dtype_name(self.dtype)} as "
            f"{dtype_name(dtype)} (different element sizes)"
        )
    if old > new:
        ratio = old // new
        shape = (*self.shape[:-1], self.shape[-1] * ratio)
        stride = (*(step * ratio for step in self.stride[:-1]), 1)
        offset = self.offset * ratio
    else:
        ratio = new // old
        for quantity, what in (
            (self.shape[-1], "self.size(-1)"),
            (self.offset, "self.storage_offset()"),
            *((step, f"self.stride({dim})") for dim, step in enumerate(self.stride[:-1])),
        ):
            if not eq(quantity % ratio, 0):
                raise RuntimeError(
                    f"{what} must be divisible by {ratio} to view {dtype_name(self.dtype)} as "
                    f"{dtype_name(dtype)} (different element sizes), but got {quantity}"
                )
        shape = (*self.shape[:-1], self.shape[-1] // ratio)
        stride = (*(step // ratio for step in self.stride[:-1]), 1)
        offset = self.offset // ratio
    return Spec.of(shape, stride=stride, dtype=dtype, device=self.device, offset=offset)


@rule(aten.view_as_real.default)
def view_as_real(self: Spec) -> Spec:
    """Real and imaginary parts along a new last dimension."""
    if not self.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    stride = (*(step * 2 for step in self.stride), 1)
    return Spec.of(
        (*self.shape, 2),
        stride=stride,
        dtype=real_dtype(self.dtype),
        device=self.device,
        offset=self.offset * 2,
    )


@rule(aten.view_as_complex.default)
def view_as_complex(self: Spec) -> Spec:
    """Pairs along the last dimension as complex numbers."""
    if not self.shape or not eq(self.shape[-1], 2):
        raise RuntimeError("Tensor must have a last dimension of size 2")
    if not eq(self.stride[-1], 1):
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    steps = [
        step for size, step in zip(self.shape[:-1], self.stride, strict=False) if not eq(size, 1)
    ]
    if any(not eq(quantity % 2, 0) for quantity in (self.offset, *steps)):
        raise RuntimeError("Tensor must have strides and a storage_offset divisible by 2")
    stride = tuple(step // 2 for step in self.stride[:-1])
    return Spec.of(
        self.shape[:-1],
        stride=stride,
        dtype=complex_dtype(self.dtype),
        device=self.device,
        offset=self.offset // 2,
    )


@rule(aten.expand.default)
def expand(self: Spec, size: Sizes, *, implicit: bool = False) -> Spec:
    """Dimensions of size 1 repeated at stride 0; -1 keeps a size."""
    lead = len(size) - self.ndim
    if lead < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(size)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({self.ndim})"
        )
    shape: list[Size] = []
    stride: list[Size] = []
    for dim, wanted in enumerate(size):
        kept = isinstance(wanted, int) and wanted == -1
        if dim < lead:
            if kept or lt(wanted, 0):
                raise RuntimeError(
                    f"The expanded size of the tensor ({wanted}) isn't allowed in a "
                    f"leading, non-existing dimension {dim}"
                )
            shape.append(wanted)
            stride.append(0)
            continue
        old, step = self.shape[dim - lead], self.stride[dim - lead]
        if kept or eq(wanted, old):
            shape.append(old)
            stride.append(step)
        elif eq(old, 1):
            shape.append(wanted)
            stride.append(0)
        else:
            raise RuntimeError(
                f"The expanded size of the tensor ({wanted}) must match the existing size "
                f"({old}) at non-singleton "
                f"dimension {dim}.  Target sizes: {list(size)}.  Tensor sizes: {list(self.shape)}"
            )
    if self.ndim:
        stride = _leading_strides(shape, stride, lead)
    return restrided(self, shape, stride)


def _leading_strides(shape: list[Size], stride: list[Size], lead: int) -> list[Size]:
    """Strides of dimensions that expand puts in front: 0, but row-major where the size is 1."""
    for dim in range(lead - 1, -1, -1):
        stride[dim] = shape[dim + 1] * stride[dim + 1] if eq(shape[dim], 1) else 0
    return stride


# 2. Dimensions rearranged


def transposed(self: Spec, dim0: int, dim1: int) -> Spec:
    """Two dimensions exchanged."""
    order = list(range(self.ndim))
    if order:
        order[dim0], order[dim1] = dim1, dim0
    return _permuted(self, order)


def _permuted(self: Spec, order: Sequence[int]) -> Spec:
    return restrided(self, [self.shape[d] for d in order], [self.stride[d] for d in order])


@rule(aten.transpose.int)
def transpose(self: Spec, dim0: int, dim1: int) -> Spec:
    """Two dimensions exchanged."""
    return transposed(self, wrap_dim(dim0, self.ndim), wrap_dim(dim1, self.ndim))


@rule(aten.t.default)
def t(self: Spec) -> Spec:
    """A matrix transposed; vectors and scalars as they are."""
    if self.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
    return transposed(self, 0, 1) if self.ndim == 2 else self


@rule(aten.permute.default)
def permute(self: Spec, dims: Sequence[int]) -> Spec:
    """All dimensions reordered."""
    if len(dims) != self.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {self.ndim} is not "
            f"equal to len(dims) = {len(dims)}"
        )
    try:
        return _permuted(self, wrap_dims(dims, self.ndim))
    except RuntimeError:
        raise RuntimeError("permute(): duplicate dims are not allowed.") from None


@rule(aten.unsqueeze.default)
def unsqueeze(self: Spec, dim: int) -> Spec:
    """A new dimension of size 1."""
    axis = wrap_dim(dim, self.ndim + 1)
    step: Size = self.shape[axis] * self.stride[axis] if axis < self.ndim else 1
    return restrided(
        self,
        (*self.shape[:axis], 1, *self.shape[axis:]),
        (*self.stride[:axis], step, *self.stride[axis:]),
    )


@rule(*overloads("squeeze"))
def squeeze(self: Spec, dim: int | Sequence[int] | None = None) -> Spec:
    """Dimensions of size 1 dropped: all, or those named."""
    if dim is None:
        among: set[int] = set(range(self.ndim))
    else:
        among = set(wrap_dims((dim,) if isinstance(dim, int) else dim, self.ndim))
    kept = [
        d
        for d in range(self.ndim)
        if d not in among or (not eq(self.shape[d], 1) and expect("!=", self.shape[d], 1))
    ]
    return _permuted(self, kept)


@rule(aten.diagonal.default)
def diagonal(self: Spec, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Spec:
    """A diagonal of two dimensions, as a new last dimension."""
    first, second = wrap_dim(dim1, self.ndim), wrap_dim(dim2, self.ndim)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = self.shape[first], self.shape[second]
    if offset >= 0:
        length, start = size_min(rows, columns - offset), offset * self.stride[second]
    else:
        length, start = size_min(rows + offset, columns), -offset * self.stride[first]
    length = size_max(length, 0)
    storage_offset = self.offset if eq(length, 0) else self.offset + start
    kept = [d for d in range(self.ndim) if d not in (first, second)]
    return restrided(
        self,
        [*(self.shape[d] for d in kept), length],
        [*(self.stride[d] for d in kept), self.stride[first] + self.stride[second]],
        storage_offset,
    )


# 3. Parts


def clamped_range(size: Size, start: Size | None, end: Size | None) -> tuple[Size, Size]:
    """A Python slice's start and end, counted from 0 and clamped to a dimension's size."""
    start = 0 if start is None else start
    end = size if end is None else end
    if isinstance(end, int) and end >= 2**63 - 1:
        end = size
    if any(isinstance(x, Expr) and x.env.is_unbacked(x) for x in (size, start, end)):
        return _clamped_without_guards(size, start, end)
    if lt(start, 0):
        start = start + size
        start = 0 if lt(start, 0) else start
    elif gt(start, size):
        start = size
    if lt(end, 0):
        end = end + size
    if lt(end, start):
        end = start
    elif gt(end, size):
        end = size
    return start, end


def _clamped_without_guards(size: Size, start: Size, end: Size) -> tuple[Size, Size]:
    """`clamped_range` for unbacked sizes: minima and maxima replace guards."""
    first, last = (
        size_max(bound + size, 0) if lt(bound, 0) else size_min(bound, size)
        for bound in (start, end)
    )
    return first, size_max(first, last)


@rule(aten.slice.Tensor)
def slice_(
    self: Spec, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> Spec:
    """Every step-th element from start to end along a dimension."""
    if not self.shape:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    axis = wrap_dim(dim, self.ndim)
    if le(step, 0):
        raise RuntimeError("slice step must be positive")
    first, last = clamped_range(self.shape[axis], start, end)
    length = last - first if known_eq(step, 1) else ceil_div(last - first, step)
    shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
    stride = (*self.stride[:axis], self.stride[axis] * step, *self.stride[axis + 1 :])
    return restrided(self, shape, stride, self.offset + first * self.stride[axis])


@rule(aten.select.int)
def select(self: Spec, dim: int, index: Size) -> Spec:
    """One index along a dimension, which is dropped."""
    if not self.shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    axis = wrap_dim(dim, self.ndim)
    size = self.shape[axis]
    if lt(index, -size) or ge(index, size):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(self.shape)} "
            f"at dimension {dim}"
        )
    if lt(index, 0):
        index = index + size
    return restrided(
        self,
        self.shape[:axis] + self.shape[axis + 1 :],
        self.stride[:axis] + self.stride[axis + 1 :],
        self.offset + index * self.stride[axis],
    )


@rule(*overloads("unbind"))
def unbind(self: Spec, dim: int = 0) -> list[Spec]:
    """Every index along a dimension; their number specialises."""
    if not self.shape:
        raise RuntimeError("Dimension specified as 0 but tensor has no dimensions")
    size = self.shape[wrap_dim(dim, self.ndim)]
    return [select(self, dim, index) for index in range(as_int(size))]


@rule(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(self: Spec, split_size: Size, dim: int = 0) -> list[Spec]:
    """Pieces of equal size, the last one perhaps smaller; their number specialises."""
    if not self.shape:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    if lt(split_size, 0):
        raise RuntimeError(
            f"split expects split_size be non-negative, but got split_size={split_size}"
        )
    size = self.shape[wrap_dim(dim, self.ndim)]
    if eq(split_size, 0):
        if not eq(size, 0):
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
            )
        return [slice_(self, dim, 0, 0)]
    count = 1 if le(size, split_size) else as_int(ceil_div(size, split_size))
    pieces = [
        slice_(self, dim, index * split_size, (index + 1) * split_size)
        for index in range(count - 1)
    ]
    return [*pieces, slice_(self, dim, (count - 1) * split_size, size)]


@rule(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(self: Spec, split_sizes: Sizes, dim: int = 0) -> list[Spec]:
    """Pieces of the given sizes."""
    if not self.shape:
        raise RuntimeError("split_with_sizes expects at least a 1-dimensional tensor")
    size = self.shape[wrap_dim(dim, self.ndim)]
    total: Size = 0
    for piece in split_sizes:
        if not expect(">=", piece, 0):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes have only non-negative entries, but "
                f"got split_sizes={list(split_sizes)}"
            )
        total = total + piece
    if not eq(total, size):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size "
            f"at dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    pieces = []
    start: Size = 0
    for piece in split_sizes:
        shape = [*self.shape]
        shape[wrap_dim(dim, self.ndim)] = piece
        offset = self.offset + start * self.stride[wrap_dim(dim, self.ndim)]
        pieces.append(restrided(self, shape, self.stride, offset))
        start = start + piece
    return pieces


@rule(aten.unfold.default)
def unfold(self: Spec, dimension: int, size: Size, step: Size) -> Spec:
    """Windows along a dimension, their contents as a new last dimension."""
    axis = wrap_dim(dimension, self.ndim)
    extent: Size = self.shape[axis] if self.shape else 1
    if gt(size, extent):
        raise RuntimeError(
            f"maximum size for tensor at dimension {axis} is {extent} but size is {size}"
        )
    if le(step, 0):
        raise RuntimeError(f"step is {step} but must be > 0")
    if not self.shape:
        return restrided(self, (size,), (1,))
    windows = (extent - size) // step + 1
    return restrided(
        self,
        (*self.shape[:axis], windows, *self.shape[axis + 1 :], size),
        (
            *self.stride[:axis],
            self.stride[axis] * step,
            *self.stride[axis + 1 :],
            self.stride[axis],
        ),
    )


# 4. Any geometry


@rule(aten.as_strided.default, aten.as_strided_.default)
def as_strided(self: Spec, size: Sizes, stride: Sizes, storage_offset: Size | None = None) -> Spec:
    """The given geometry over self's storage."""
    if len(size) != len(stride):
        raise RuntimeError(
            f"mismatch in length of strides and shape: {len(size)} sizes, {len(stride)} strides"
        )
    if any(lt(step, 0) for step in stride):
        raise RuntimeError(
            f"as_strided: Negative strides are not supported at the moment, got strides: "
            f"{list(stride)}"
        )
    return restrided(self, size, stride, storage_offset)


# 5. Functional inverses of views: self with one part replaced


def _scattered(self: Spec, part: Spec, src: Spec, what: str) -> Spec:
    """A copy in self's strides, gaps included as in eager; packed if elements overlap."""
    if not same_shape(part.shape, src.shape):
        raise RuntimeError(
            f"expected src to have a size equal to the {what} of self. src size = "
            f"{list(src.shape)}, {what} size = {list(part.shape)}"
        )
    overlaps = any(likely_eq(step, 0) for step in self.stride)
    stride = preserved_stride(self) if overlaps or is_dense(self) else self.stride
    return self.fresh(stride=stride)


@rule(aten.slice_scatter.default)
def slice_scatter(
    self: Spec, src: Spec, dim: int, start: Size | None, end: Size | None, step: Size
) -> Spec:
    """A copy of self with a slice replaced."""
    return _scattered(self, slice_(self, dim, start, end, step), src, "slice")


@rule(aten.select_scatter.default)
def select_scatter(self: Spec, src: Spec, dim: int, index: Size) -> Spec:
    """A copy of self with one index replaced."""
    return _scattered(self, select(self, dim, index), src, "slice")


@rule(aten.diagonal_scatter.default)
def diagonal_scatter(self: Spec, src: Spec, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Spec:
    """A copy of self with a diagonal replaced."""
    return _scattered(self, diagonal(self, offset, dim1, dim2), src, "slice")


@rule(aten.as_strided_scatter.default)
def as_strided_scatter(
    self: Spec, src: Spec, size: Sizes, stride: Sizes, storage_offset: Size | None
) -> Spec:
    """A copy of self with a strided part replaced."""
    return _scattered(self, as_strided(self, size, stride, storage_offset), src, "slice")


# 6. Backwards of views: zeros with the gradient in its place


@rule(aten.slice_backward.default, aten.select_backward.default, aten.diagonal_backward.default)
def view_backward(grad_output: Spec, input_sizes: Sizes) -> Spec:
    """Row-major."""
    return grad_output.fresh(input_sizes)


@rule(aten.unfold_backward.default)
def unfold_backward(grad_in: Spec, input_sizes: Sizes) -> Spec:
    """Row-major."""
    return grad_in.fresh(input_sizes)


@rule(aten.block_diag.default)
def block_diag(tensors: Sequence[Spec]) -> Spec:
    """A matrix with the tensors as its blocks; rows stand for those of fewer dimensions."""
    if any(tensor.ndim > 2 for tensor in tensors):
        raise RuntimeError("torch.block_diag: Input tensors must have 2 or fewer dimensions.")
    blocks = [(1,) * (2 - tensor.ndim) + tensor.shape for tensor in tensors]
    rows: Size = sum((block[0] for block in blocks), 0)
    columns: Size = sum((block[1] for block in blocks), 0)
    first = tensors[0]
    return first.fresh((rows, columns), dtype=result_type(tensors))


@rule(aten._chunk_cat.default)
def chunk_cat(tensors: Sequence[Spec], dim: int, num_chunks: int) -> Spec:
    """Each tensor padded and cut into chunks along a dimension, and the flattened chunks joined."""
    first = tensors[0]
    axis = wrap_dim(dim, first.ndim)
    chunk: Size = 0
    for tensor in tensors:
        rest = product(tensor.shape[axis + 1 :])
        chunk = chunk + ceil_div(tensor.shape[axis], num_chunks) * rest
    shape = (*first.shape[:axis], num_chunks, chunk)
    return first.fresh(shape)
