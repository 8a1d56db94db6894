"""Strides: which a fresh elementwise result gets, and which a reshape keeps.

These are eager's own rules, on ints and symbolic sizes alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims import sizes
from flambeau_prims.spec import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size


def elementwise_stride(shape: Sequence[Size], operands: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """Dense strides for a fresh result of `shape`, its dims in the order of the operands' strides.

    An operand's broadcast dims (stride 0) have no say; the first operand that tells two dims apart decides, and ties
    keep row-major order.
    """
    row_major = contiguous_stride(shape)
    if all(stride == row_major for stride in operands):
        return row_major
    order = list(range(len(shape)))[::-1]  # innermost first
    for i in range(1, len(order)):
        at = i
        for other in range(i - 1, -1, -1):
            verdict = _compare(order[other], order[at], shape, operands)
            if verdict > 0:
                order[other], order[at] = order[at], order[other]
                at = other
            elif verdict < 0:
                break
    return stride_of_order(shape, order)


def stride_of_order(shape: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """Dense strides with the dims of `order` from innermost to outermost (sizes 0 and 1 count as 1)."""
    stride: list[Size] = [1] * len(shape)
    running: Size = 1
    for d in order:
        stride[d] = running
        size = shape[d]
        if not isinstance(size, int) or size > 1:
            running = size * running
    return tuple(stride)


def dense_stride_like(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[Size, ...]:
    """Dense strides for `shape` in the dim order of `stride`."""
    return elementwise_stride(shape, [stride])


def _compare(inner: int, outer: int, shape: Sequence[Size], operands: Sequence[Sequence[Size]]) -> int:
    """Positive when dim `inner` should lie outside dim `outer`, negative when it lies right, 0 when no operand tells."""
    for stride in operands:
        a, b = stride[inner], stride[outer]
        if _is_zero(a) or _is_zero(b):
            continue
        if a is b or a == b:
            if shape[inner] is not shape[outer] and sizes.gt(shape[inner], shape[outer]):
                return 1
            continue
        return -1 if sizes.lt(a, b) else 1
    return 0


def _is_zero(size: Size) -> bool:
    return isinstance(size, int) and size == 0


def reshape_stride(
    shape: Sequence[Size], stride: Sequence[Size], new_shape: Sequence[Size]
) -> tuple[Size, ...] | None:
    """Strides that view memory of (shape, stride) as `new_shape`, or None when no strides do.

    Dims that lie contiguously in memory form chunks; every chunk must be filled exactly by a run of new dims.
    """
    if tuple(shape) == tuple(new_shape):
        return tuple(stride)
    if any(isinstance(size, int) and size == 0 for size in shape):
        return contiguous_stride(new_shape)
    if not shape:
        return (1,) * len(new_shape)
    found: list[Size] = [0] * len(new_shape)
    new = len(new_shape) - 1
    base: Size = stride[-1]
    have: Size = 1
    filled: Size = 1
    for d in range(len(shape) - 1, -1, -1):
        have = shape[d] * have
        if d and (_is_one(shape[d - 1]) or sizes.eq(stride[d - 1], have * base)):
            continue
        while new >= 0 and (_is_one(new_shape[new]) or sizes.lt(filled, have)):
            found[new] = filled * base
            filled = filled * new_shape[new]
            new -= 1
        if not sizes.eq(filled, have):
            return None
        if d:
            base, have, filled = stride[d - 1], 1, 1
    return tuple(found) if new == -1 else None


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1
