"""Shape rules of Fourier transforms along the last dimension of a row-major tensor, whose results are row-major.

The libraries lay out other transforms in orders of their own, which torch's meta kernels know; those along several dimensions too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.meta_fallback import infer_on_meta
from flambeau_prims.promotion import complex_dtype, real_dtype
from flambeau_prims.rules.registry import rule
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import is_contiguous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


def _is_plain(self: Spec, dim: Sequence[int]) -> bool:
    if len(dim) != 1 or dim[0] % self.ndim != self.ndim - 1:
        return False
    # The libraries see the strides of dimensions of size 1, too; of symbolic sizes these are not known as expressions.
    is_row_major = self.stride == contiguous_stride(self.shape)
    return is_row_major or (self.env is not None and is_contiguous(self))


def _fresh(self: Spec, last: Size, dtype: torch.dtype) -> Spec:
    return Spec.of((*self.shape[:-1], last), dtype=dtype, device=self.device)


@rule(aten._fft_c2c.default)
def fft_c2c(self: Spec, dim: Sequence[int], normalization: int, forward: bool) -> Spec:
    """Complex to complex."""
    if not (_is_plain(self, dim) and self.dtype.is_complex):
        return infer_on_meta(aten._fft_c2c.default, (self, dim, normalization, forward), {})
    return _fresh(self, self.shape[-1], self.dtype)


@rule(aten._fft_r2c.default)
def fft_r2c(self: Spec, dim: Sequence[int], normalization: int, onesided: bool) -> Spec:
    """Real to complex; `onesided` leaves out the half that follows by symmetry."""
    if not (_is_plain(self, dim) and self.dtype.is_floating_point):
        return infer_on_meta(aten._fft_r2c.default, (self, dim, normalization, onesided), {})
    last = self.shape[-1] // 2 + 1 if onesided else self.shape[-1]
    return _fresh(self, last, complex_dtype(self.dtype))


@rule(aten._fft_c2r.default)
def fft_c2r(self: Spec, dim: Sequence[int], normalization: int, last_dim_size: Size) -> Spec:
    """Complex to real, of the size asked for."""
    if not (_is_plain(self, dim) and self.dtype.is_complex):
        return infer_on_meta(aten._fft_c2r.default, (self, dim, normalization, last_dim_size), {})
    return _fresh(self, last_dim_size, real_dtype(self.dtype))
