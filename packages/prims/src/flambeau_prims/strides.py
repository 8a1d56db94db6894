"""Strides of eager results: memory formats, "preserve the format", and the loop order of
elementwise operators.

Three things decide the layout of almost every result: the memory format of an operand
(`suggested_format`, `is_dense`), what a copy preserves (`preserved_stride`), and how an elementwise
loop over several operands orders its dimensions (`elementwise_layout`). All take sizes that may be
symbolic and ask relations through `sizes`.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import TYPE_CHECKING

import torch

from flambeau_prims.sizes import eq, likely_eq, likely_ge, lt
from flambeau_prims.spec import Spec, contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.spec import Size

Shape = tuple["Size", ...]
Layout = tuple[Shape, Shape]
"""A shape and a stride."""

_CHANNELS_LAST_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
"""Dimensions from the innermost to the outermost, by number of dimensions."""


# 1. Dimensions and shapes


def wrap_dim(dim: int, ndim: int) -> int:
    """The dimension counted from 0; a 0-dim tensor has dimensions 0 and -1, as in ATen."""
    extent = max(ndim, 1)
    if not -extent <= dim < extent:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-extent}, "
            f"{extent - 1}], but got {dim})"
        )
    return dim % extent


def wrap_dims(dims: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Several dimensions counted from 0; a repeated one is an error."""
    wrapped = tuple(wrap_dim(dim, ndim) for dim in dims)
    for position, dim in enumerate(wrapped):
        if dim in wrapped[:position]:
            raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return wrapped


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape to which these shapes broadcast."""
    result = shapes[0]
    for shape in shapes[1:]:
        if shape != result:
            result = _broadcast_two(result, shape)
    return result


def _broadcast_two(left: Shape, right: Shape) -> Shape:
    ndim = max(len(left), len(right))
    padded_left = (1,) * (ndim - len(left)) + left
    padded_right = (1,) * (ndim - len(right)) + right
    result = []
    for dim, (a, b) in enumerate(zip(padded_left, padded_right, strict=True)):
        if a == b or eq(b, 1):
            result.append(a)
        elif eq(a, 1):
            result.append(b)
        elif eq(a, b):
            result.append(b if isinstance(b, int) else a)
        else:
            raise RuntimeError(
                f"The size of tensor a ({a}) must match the size of tensor b ({b}) at "
                f"non-singleton dimension {dim}"
            )
    return tuple(result)


def same_shape(left: Shape, right: Shape) -> bool:
    """Whether two shapes are equal (guards when only the hints say so)."""
    if left == right:
        return True
    return len(left) == len(right) and all(eq(a, b) for a, b in zip(left, right, strict=True))


def product(sizes: Sequence[Size]) -> Size:
    """The product of sizes."""
    result: Size = 1
    for size in sizes:
        result = size * result
    return result


# 2. What a layout is


def is_contiguous(spec: Spec) -> bool:
    """As `tensor.is_contiguous()`: row-major, or empty."""
    if spec.stride == contiguous_stride(spec.shape) or is_empty(spec.shape):
        return True
    return _is_packed(spec.shape, spec.stride, range(spec.ndim - 1, -1, -1))


def is_empty(shape: Shape) -> bool:
    """Whether some size is 0."""
    return any(likely_eq(size, 0) for size in shape)


def is_channels_last(spec: Spec) -> bool:
    """As `tensor.is_contiguous(memory_format=channels_last)`, or channels_last_3d for 5 dims."""
    order = _CHANNELS_LAST_ORDER.get(spec.ndim)
    return order is not None and _is_packed(spec.shape, spec.stride, order)


def _is_packed(shape: Shape, stride: Shape, order: Sequence[int]) -> bool:
    expected: Size = 1
    for dim in order:
        size = shape[dim]
        if not likely_eq(size, 1):
            if not likely_eq(stride[dim], expected):
                return False
            expected = size * expected
    return True


def is_dense(spec: Spec) -> bool:
    """As `is_non_overlapping_and_dense`: some permutation of the dimensions is contiguous."""
    shape, stride = spec.shape, spec.stride
    if spec.ndim == 1:
        return not likely_ge(shape[0], 2) or likely_eq(stride[0], 1)
    if is_contiguous(spec) or is_channels_last(spec):
        return True
    dims = [dim for dim in range(spec.ndim) if likely_ge(shape[dim], 2)]
    _sort_dims(dims, lambda a, b: not likely_ge(stride[a], stride[b]))
    return _is_packed(shape, stride, dims)


def _sort_dims(dims: list[int], before: Callable[[int, int], bool]) -> None:
    """Stable insertion sort of a few dimensions by a strict order."""
    for end in range(1, len(dims)):
        position = end
        while position and before(dims[position], dims[position - 1]):
            dims[position], dims[position - 1] = dims[position - 1], dims[position]
            position -= 1


def suggested_format(spec: Spec) -> torch.memory_format:
    """As `suggest_memory_format`: channels_last(_3d) if the strides are ordered so, else
    contiguous.

    Unlike `is_channels_last` this looks at the order of strides only, so a sliced channels_last
    tensor still counts; layouts that could be either (N x C x 1 x 1) count as contiguous.
    """
    order = _CHANNELS_LAST_ORDER.get(spec.ndim)
    if order is None or not _ordered_as_channels_last(spec.shape, spec.stride, order):
        return torch.contiguous_format
    return torch.channels_last if spec.ndim == 4 else torch.channels_last_3d


def _ordered_as_channels_last(shape: Shape, stride: Shape, order: Sequence[int]) -> bool:
    if likely_eq(stride[1], 0):
        return False
    least: Size = 0
    for dim in order:
        if likely_eq(shape[dim], 0) or not likely_ge(stride[dim], least):
            return False
        if dim == 0 and likely_eq(least, stride[1]):
            return False
        least = stride[dim] * shape[dim] if likely_ge(shape[dim], 2) else stride[dim]
    return True


# 3. Strides of new tensors


def channels_last_stride(shape: Shape) -> Shape:
    """The strides of a fresh channels_last (4 dimensions) or channels_last_3d (5) tensor. Unlike
    those of a contiguous one, they count a size of 0 as 0.
    """
    stride: list[Size] = [0] * len(shape)
    running: Size = 1
    for dim in _CHANNELS_LAST_ORDER[len(shape)]:
        stride[dim] = running
        running = shape[dim] * running
    return tuple(stride)


def stride_for(shape: Shape, memory_format: torch.memory_format | None) -> Shape:
    """The strides of a fresh tensor; None and preserve_format mean contiguous."""
    if memory_format is None or memory_format in (torch.contiguous_format, torch.preserve_format):
        return contiguous_stride(shape)
    if len(shape) != (4 if memory_format == torch.channels_last else 5):
        raise RuntimeError(
            f"required rank {4 if memory_format == torch.channels_last else 5} tensor to "
            f"use {memory_format} format"
        )
    return channels_last_stride(shape)


def preserved_stride(spec: Spec) -> Shape:
    """The strides of a copy with preserve_format: as they are if dense, else packed in order."""
    if spec.stride == contiguous_stride(spec.shape) or is_dense(spec):
        return spec.stride
    shape, stride = spec.shape, spec.stride

    def compare(inner: int, outer: int) -> int:
        return _compare_strides(shape, stride, inner, outer)

    result: list[Size] = [0] * spec.ndim
    running: Size = 1
    for dim in _loop_order(spec.ndim, compare):
        result[dim] = running
        if likely_ge(shape[dim], 2):
            running = shape[dim] * running
    return tuple(result)


def copy_stride(spec: Spec, memory_format: torch.memory_format | None) -> Shape:
    """The strides of a copy of `spec` in a memory format, of which None means preserve."""
    if memory_format is None or memory_format == torch.preserve_format:
        return preserved_stride(spec)
    return stride_for(spec.shape, memory_format)


def suggested_stride(spec: Spec, shape: Shape | None = None) -> Shape:
    """Strides for `shape` (default: the spec's own) in the spec's suggested memory format."""
    return stride_for(spec.shape if shape is None else shape, suggested_format(spec))


def _compare_strides(shape: Shape, stride: Shape, inner: int, outer: int) -> int:
    """1 if the two dims should change places, -1 if not, 0 if this operand cannot tell."""
    a, b = stride[inner], stride[outer]
    if likely_eq(a, 0) or likely_eq(b, 0):
        return 0
    if likely_eq(a, b):
        return 1 if likely_ge(shape[inner], shape[outer] + 1) else 0
    return -1 if not likely_ge(a, b) else 1


def _loop_order(ndim: int, compare: Callable[[int, int], int]) -> list[int]:
    """Dims, innermost first: an insertion sort in which 0 ("cannot tell") looks further in."""
    order = list(range(ndim - 1, -1, -1))
    for start in range(1, ndim):
        moving = start
        for other in range(start - 1, -1, -1):
            outcome = compare(order[other], order[moving])
            if outcome > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif outcome < 0:
                break
    return order


# 4. Elementwise loops


def elementwise_layout(operands: Sequence[Layout]) -> Layout:
    """Shape and strides of the result of an elementwise loop over these operands, as TensorIterator
    allocates it.

    If every operand has the result's shape: contiguous if all are, else channels_last if all are,
    else their common strides if dense. Otherwise dimensions are ordered by the strides of the first
    operand that tells two apart.
    """
    first = next((entry for entry in operands if entry[0]), operands[0])
    row_major = contiguous_stride(first[0])
    if first[1] == row_major and all(entry == first or not entry[0] for entry in operands):
        # Where it is empty, a scalar beside it has the dims ordered by strides that say little.
        if all(map(first.__eq__, operands)) or not is_empty(first[0]):
            return first
    shape = broadcast_shapes(*(entry[0] for entry in operands))
    if all(same_shape(entry[0], shape) for entry in operands):
        common = _common_stride([Spec.of(shape, stride=entry[1]) for entry in operands])
        if common is not None:
            return shape, common
    return shape, _ordered_stride(shape, [_broadcast_stride(entry, shape) for entry in operands])


def _common_stride(specs: list[Spec]) -> Shape | None:
    if all(is_contiguous(spec) for spec in specs):
        return contiguous_stride(specs[0].shape)
    if specs[0].ndim == 4 and all(is_channels_last(spec) for spec in specs):
        return channels_last_stride(specs[0].shape)
    first = specs[0].stride
    if all(all(map(likely_eq, spec.stride, first)) for spec in specs) and is_dense(specs[0]):
        return first
    return None


def _broadcast_stride(entry: Layout, shape: Shape) -> Shape:
    own_shape, own_stride = entry
    lead = len(shape) - len(own_shape)
    stride: list[Size] = [0] * lead
    for size, step, wanted in zip(own_shape, own_stride, shape[lead:], strict=True):
        stride.append(0 if likely_eq(size, 1) and not likely_eq(wanted, 1) else step)
    return tuple(stride)


def _ordered_stride(shape: Shape, strides: list[Shape]) -> Shape:
    def compare(inner: int, outer: int) -> int:
        for stride in strides:
            outcome = _compare_strides(shape, stride, inner, outer)
            if outcome:
                return outcome
        return 0

    ndim = len(shape)
    order = _loop_order(ndim, compare)
    if order == list(range(ndim - 1, -1, -1)):
        return contiguous_stride(shape)
    result: list[Size] = [0] * ndim
    running: Size = 1
    for dim in order:
        result[dim] = running
        running = shape[dim] * running
    return tuple(result)


def outermost_first(stride: Sequence[Size]) -> list[int]:
    """The dims by their strides, but the last one innermost."""

    def compare(a: int, b: int) -> int:
        if eq(stride[a], stride[b]):
            return a - b  # as eager: of equal strides, the later dim is the inner one
        return -1 if lt(stride[b], stride[a]) else 1

    last = len(stride) - 1
    return [*sorted(range(last), key=cmp_to_key(compare)), last]


def dense_stride(shape: Sequence[Size], like: Sequence[Size]) -> tuple[Size, ...]:
    """Strides of a dense tensor: the last dim innermost, the others in the order of `like`."""
    order = outermost_first(like)
    dense = contiguous_stride([shape[dim] for dim in order])
    return tuple(dense[order.index(dim)] for dim in range(len(shape)))
