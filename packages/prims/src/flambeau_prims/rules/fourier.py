"""Shape rules of Fourier transforms.

A plan of a library (MKL, cuFFT) sees a batch of transforms: batch dimensions first, in the order of
their strides, then those transformed, and its result is row-major in this order. MKL has one plan
for a call, of complex to real two. A plan of cuFFT has at most three transformed dimensions; calls
that one plan does not serve are a chain of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import complex_dtype, real_dtype
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq, likely_eq, likely_ge
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import is_contiguous, preserved_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten

_CUFFT_DIMS = 3
"""The most dimensions that a plan of cuFFT transforms."""


@rule(aten._fft_c2c.default)
def fft_c2c(self: Spec, dim: Sequence[int]) -> Spec:
    """Complex to complex."""
    if not self.dtype.is_complex:
        raise RuntimeError("_fft_c2c: expected a complex tensor")
    if not dim:
        return self.fresh(stride=preserved_stride(self))
    dims = _wrapped(self, dim)
    if self.device.type == "cpu":
        return _transformed(self, _by_stride(self, dims), self.shape, self.dtype)
    return _in_stages(self, dims)


@rule(aten._fft_r2c.default)
def fft_r2c(self: Spec, dim: Sequence[int], onesided: bool) -> Spec:
    """Real to complex; `onesided` leaves out the half that follows by symmetry."""
    if not self.dtype.is_floating_point:
        raise RuntimeError("_fft_r2c: expected a floating point tensor")
    dims = _wrapped(self, dim)
    *rest, last = dims
    dtype = complex_dtype(self.dtype)
    half = _resized(self, last, self.shape[last] // 2 + 1)
    shape = half if onesided else self.shape
    if self.device.type == "cpu":
        return _transformed(self, [*_by_stride(self, rest), last], shape, dtype)
    source = _aligned(self, last)
    if _in_one_plan(dims):
        return _transformed(source, dims, shape, dtype)
    staged = _in_stages(_transformed(source, [last], half, dtype), rest)
    return staged if eq(half[last], shape[last]) else self.fresh(shape, dtype=dtype)


@rule(aten._fft_c2r.default)
def fft_c2r(self: Spec, dim: Sequence[int], last_dim_size: Size) -> Spec:
    """Complex to real, of the size asked for: complex to complex first along all dimensions but the
    last, where one plan does not do both.
    """
    if not self.dtype.is_complex:
        raise RuntimeError("_fft_c2r: expected a complex tensor")
    dims = _wrapped(self, dim)
    *rest, last = dims
    dtype = real_dtype(self.dtype)
    shape = _resized(self, last, last_dim_size)
    if self.device.type != "cpu" and _in_one_plan(dims):
        return _transformed(self.fresh(), dims, shape, dtype)
    before = fft_c2c(self, rest) if rest else self
    return _transformed(before, [last], shape, dtype)


def _wrapped(self: Spec, dims: Sequence[int]) -> list[int]:
    return [dim % self.ndim for dim in dims]


def _resized(self: Spec, dim: int, size: Size) -> tuple[Size, ...]:
    return (*self.shape[:dim], size, *self.shape[dim + 1 :])


def _in_one_plan(dims: list[int]) -> bool:
    """Whether cuFFT transforms between real and complex numbers along all dimensions at once; not
    along the first two, where that is slower.
    """
    return len(dims) <= _CUFFT_DIMS and dims[:2] != [0, 1]


def _in_stages(self: Spec, dims: list[int]) -> Spec:
    """Plans of up to three dimensions, those of the smallest strides first; each result has strides
    that reorder the dimensions.
    """
    while dims:
        dims = _by_stride(self, dims)
        self = _transformed(self, dims[-_CUFFT_DIMS:], self.shape, self.dtype)
        dims = dims[:-_CUFFT_DIMS]
    return self


def _aligned(self: Spec, last: int) -> Spec:
    """What cuFFT reads real numbers from: they lie in pairs, as complex ones, or are copied so that
    the dimension transformed first is innermost.
    """
    if likely_eq(self.offset % 2, 0):
        return self
    order = [*(dim for dim in range(self.ndim) if dim != last), last]
    packed = contiguous_stride(tuple(self.shape[dim] for dim in order))
    return self.fresh(stride=[packed[order.index(dim)] for dim in range(self.ndim)])


def _transformed(
    self: Spec, order: Sequence[int], shape: tuple[Size, ...], dtype: torch.dtype
) -> Spec:
    """The result of one plan that transforms along the dimensions `order`."""
    if order == [self.ndim - 1] and _is_row_major(self):
        return self.fresh(shape, dtype=dtype)
    batch = _by_stride(self, _untransformed(self.ndim, set(order)))
    stride: list[Size] = [0] * self.ndim
    running: Size = 1
    for dim in reversed([*batch, *order]):
        stride[dim] = running
        running = shape[dim] * running
    return self.fresh(shape, stride, dtype=dtype)


def _is_row_major(self: Spec) -> bool:
    # The libraries see the strides of dimensions of size 1, too; of symbolic sizes these are not
    # known as expressions.
    is_row_major = self.stride == contiguous_stride(self.shape)
    return is_row_major or (self.env is not None and is_contiguous(self))


def _by_stride(self: Spec, dims: Sequence[int]) -> list[int]:
    """Dimensions by descending strides, those of one stride in their order."""
    result: list[int] = []
    for dim in dims:
        position = len(result)
        while position and not likely_ge(self.stride[result[position - 1]], self.stride[dim]):
            position -= 1
        result.insert(position, dim)
    return result


def _untransformed(ndim: int, transformed: set[int]) -> list[int]:
    """The other dimensions in std::partition's order: each gap is filled from the end."""
    dims = list(range(ndim))
    first, last = 0, ndim
    while True:
        while first != last and dims[first] not in transformed:
            first += 1
        if first == last:
            return dims[:first]
        last -= 1
        while first != last and dims[last] in transformed:
            last -= 1
        if first == last:
            return dims[:first]
        dims[first], dims[last] = dims[last], dims[first]
        first += 1
