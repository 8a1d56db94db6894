"""Shape rules of Fourier transforms.

The CPU's library (MKL) sees a batch of transforms: batch dimensions first, in the order of their
strides, then those transformed, and its result is row-major in this order. The GPU's works in
stages, whose layouts torch's meta kernels know, for int sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.meta_fallback import infer_on_meta
from flambeau_prims.promotion import complex_dtype, real_dtype
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import likely_ge
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import is_contiguous, preserved_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from flambeau_prims.spec import Size

aten = torch.ops.aten


@rule(aten._fft_c2c.default)
def fft_c2c(self: Spec, dim: Sequence[int], normalization: int, forward: bool) -> Spec:
    """Complex to complex."""
    if not self.dtype.is_complex:
        raise RuntimeError("_fft_c2c: expected a complex tensor")
    if not dim:
        return self.replace(stride=preserved_stride(self), offset=0)
    return _transformed(
        self,
        _by_stride(self, dim),
        self.shape,
        self.dtype,
        aten._fft_c2c.default,
        (dim, normalization, forward),
    )


@rule(aten._fft_r2c.default)
def fft_r2c(self: Spec, dim: Sequence[int], normalization: int, onesided: bool) -> Spec:
    """Real to complex; `onesided` leaves out the half that follows by symmetry."""
    if not self.dtype.is_floating_point:
        raise RuntimeError("_fft_r2c: expected a floating point tensor")
    shape = list(self.shape)
    if onesided:
        shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    order = [*_by_stride(self, dim[:-1]), dim[-1]]
    dtype = complex_dtype(self.dtype)
    return _transformed(
        self, order, tuple(shape), dtype, aten._fft_r2c.default, (dim, normalization, onesided)
    )


@rule(aten._fft_c2r.default)
def fft_c2r(self: Spec, dim: Sequence[int], normalization: int, last_dim_size: Size) -> Spec:
    """Complex to real, of the size asked for; on a CPU complex to complex first along all
    dimensions but the last.
    """
    if not self.dtype.is_complex:
        raise RuntimeError("_fft_c2r: expected a complex tensor")
    before = self
    if len(dim) > 1 and self.device.type == "cpu":
        before = fft_c2c(self, dim[:-1], normalization, False)
    shape = list(self.shape)
    shape[dim[-1]] = last_dim_size
    order = dim if self.device.type != "cpu" else dim[-1:]
    dtype = real_dtype(self.dtype)
    return _transformed(
        before,
        order,
        tuple(shape),
        dtype,
        aten._fft_c2r.default,
        (dim, normalization, last_dim_size),
    )


def _transformed(
    self: Spec,
    order: Sequence[int],
    shape: tuple[Size, ...],
    dtype: torch.dtype,
    op: OpOverload,
    others: tuple[Any, ...],
) -> Spec:
    """The result of transforming along the dimensions `order`; `op` with `others` is the whole
    call.
    """
    order = [dim % self.ndim for dim in order]
    if order == [self.ndim - 1] and _is_row_major(self):
        return self.fresh(shape, dtype=dtype)
    if self.device.type != "cpu":
        return infer_on_meta(op, (self, *others), {})
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
    """Dimensions by descending strides, those of one stride as they stand."""
    found: list[int] = []
    for dim in dims:
        at = len(found)
        while at and not likely_ge(self.stride[found[at - 1]], self.stride[dim]):
            at -= 1
        found.insert(at, dim)
    return found


def _untransformed(ndim: int, transformed: set[int]) -> list[int]:
    """The other dimensions, in the order that std::partition leaves them in: each gap is filled
    from the end.
    """
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
