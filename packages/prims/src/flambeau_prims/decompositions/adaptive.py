"""Adaptive average pooling whose windows overlap or differ in size, one dim after another.

7 places to 3:  windows [0, 3), [2, 5), [4, 7)
sums: x[0] + x[1] + x[2], x[2] + x[3] + x[4], ...; then divided by what each window holds
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.interpolate import Resampling, gathered, inside
from flambeau_prims.decompositions.reduction import divide
from flambeau_prims.decompositions.windows import LARGEST_UNROLLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size


def _divisions(
    shape: Sequence[Size], wanted: Sequence[Size], dtype: torch.dtype
) -> list[Resampling] | None:
    """How each dim is divided; None if sizes are symbolic, or windows are empty or many places."""
    result = []
    for size, count in zip(shape, wanted, strict=True):
        if not isinstance(size, int) or not isinstance(count, int) or not size or not count:
            return None
        if -(-size // count) + 1 > LARGEST_UNROLLED:
            return None
        result.append(Resampling("adaptive", size, count, size / count, False, dtype))
    return result


def _window(ops: Any, dim: Resampling, place: Any) -> tuple[Any, Any]:
    """Where windows begin, and how many elements they hold."""
    size, count = sizes.as_int(dim.size), sizes.as_int(dim.wanted)
    begin = ops.floor_divide(ops.mul(place, size), count)
    end = ops.floor_divide(ops.add(ops.mul(place, size), size + count - 1), count)
    return begin, ops.sub(end, begin)


def _widest(dim: Resampling) -> int:
    size, count = sizes.as_int(dim.size), sizes.as_int(dim.wanted)
    return max((i * size + size + count - 1) // count - i * size // count for i in range(count))


def read_by(ops: Any, dim: Resampling, place: Any) -> list[tuple[Any, None]]:
    """The elements of each window; -1 where it holds fewer than others."""
    begin, length = _window(ops, dim, place)
    return [
        (ops.where(ops.gt(length, k), ops.add(begin, k), -1), None) for k in range(_widest(dim))
    ]


def _along_rows(b: Builder) -> bool:
    """Whether a CPU gathers along contiguous rows of the result: eager's kernels are faster than
    gathers of float16, and than those of a backward.
    """
    return b.result.device.type == "cpu" and sizes.known_eq(b.result.stride[-1], 1)


def adaptive_mean(b: Builder, x: Value, output_size: Sequence[Size]) -> Any:
    """Means over windows of the last dims."""
    if x.spec.dtype is torch.float16 and _along_rows(b):
        return NotImplemented
    x = b.widen(x)
    spatial = len(output_size)
    dims = _divisions(x.spec.shape[-spatial:], output_size, x.spec.dtype)
    if dims is None or not x.spec.dtype.is_floating_point:
        return NotImplemented
    for d in range(spatial):  # outer dims first: their loops run along contiguous rows
        axis = x.spec.ndim - spatial + d
        x = _sums(b, x, dims[d], axis)
    return divide(b, x, _counts(b, x, dims))


def _sums(b: Builder, x: Value, dim: Resampling, axis: int) -> Value:
    """The sum over each window along one dim."""
    shape = (*x.spec.shape[:axis], dim.wanted, *x.spec.shape[axis + 1 :])
    place = b.iota(dim.wanted, 0, 1, torch.int64, x.spec.device)
    begin, length = _window(b, dim, place)
    total = None
    for k in range(_widest(dim)):
        index = inside(b, b.add(begin, k) if k else begin, dim)
        element = b.index(x, [*[None] * axis, index])
        element = b.where(b.along(b.gt(length, k), (axis,), shape), element, 0.0) if k else element
        total = element if total is None else b.add(total, element)
    assert total is not None
    return total


def _counts(b: Builder, like: Value, dims: Sequence[Resampling]) -> Value:
    """How many elements each window holds."""
    first = like.spec.ndim - len(dims)
    total = None
    for d, dim in enumerate(dims):
        place = b.iota(dim.wanted, 0, 1, torch.int64, like.spec.device)
        _, length = _window(b, dim, place)
        count = b.along(b.cast(length, like.spec.dtype), (first + d,), like.spec.shape)
        total = count if total is None else b.mul(total, count)
    assert total is not None
    return total


def adaptive_mean_backward(b: Builder, grad: Value, shape: Sequence[Size]) -> Any:
    """For each element the gradients of its windows, each shared out."""
    grad = b.widen(grad)
    if _along_rows(b):
        return NotImplemented
    dims = _divisions(shape, grad.spec.shape[-len(shape) :], grad.spec.dtype)
    if dims is None or sizes.eq(grad.spec.numel, 0):
        return NotImplemented
    return gathered(b, divide(b, grad, _counts(b, grad, dims)), dims, read_by)
