"""Shape rules of sorting and searching: sort, topk, searchsorted, bucketize, isin, histc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import Operand, dtype_name, number_dtype
from flambeau_prims.rules.pointwise import common_device, not_implemented
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import gt, lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import preserved_stride, same_shape, wrap_dim
from flambeau_prims.unsupported import DataDependent

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten


# 1. Sorting


def _sorted(self: Spec, dim: int) -> tuple[Spec, Spec]:
    wrap_dim(dim, self.ndim)
    if self.dtype.is_complex:
        raise not_implemented("sort", self.dtype)
    values = self.fresh(stride=preserved_stride(self))
    return values, values.replace(dtype=torch.int64, stride=values.stride)


@rule(aten.sort.default)
def sort(self: Spec, dim: int) -> tuple[Spec, Spec]:
    """Values in self's layout, and where they stood."""
    return _sorted(self, dim)


@rule(aten.sort.stable)
def sort_stable(self: Spec, dim: int) -> tuple[Spec, Spec]:
    """Values in self's layout, and where they stood."""
    return _sorted(self, dim)


@rule(aten.argsort.default)
def argsort(self: Spec, dim: int) -> Spec:
    """Where the sorted values stood."""
    return _sorted(self, dim)[1]


@rule(aten.argsort.stable)
def argsort_stable(self: Spec, dim: int) -> Spec:
    """Where the sorted values stood."""
    return _sorted(self, dim)[1]


@rule(aten.topk.default)
def topk(self: Spec, k: Size, dim: int) -> tuple[Spec, Spec]:
    """The k largest along a dimension, row-major, and their indices."""
    axis = wrap_dim(dim, self.ndim)
    if lt(k, 0) or gt(k, self.shape[axis] if self.shape else 1):
        raise RuntimeError("selected index k out of range")
    if self.dtype.is_complex:
        raise not_implemented("topk", self.dtype)
    shape = (*self.shape[:axis], k, *self.shape[axis + 1 :]) if self.shape else ()
    values = self.fresh(shape)
    return values, values.replace(dtype=torch.int64)


# 2. Searching


def _positions(like: Spec, shape: tuple[Size, ...], out_int32: bool) -> Spec:
    return like.fresh(shape, dtype=torch.int32 if out_int32 else torch.int64)


@rule(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    sorted_sequence: Spec, self: Operand, *, out_int32: bool = False, **_options: Any
) -> Spec:
    """For each value, its place in the sequence."""
    if isinstance(self, Spec):
        if sorted_sequence.ndim != 1 and not same_shape(
            sorted_sequence.shape[:-1], self.shape[:-1]
        ):
            raise RuntimeError(
                "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
                "dimensions of boundaries tensor and input value tensor must match, but we got "
                f"boundaries tensor {list(sorted_sequence.shape)} and input value tensor "
                f"{list(self.shape)}"
            )
        return _positions(sorted_sequence, self.shape, out_int32)
    return _positions(sorted_sequence, (), out_int32)


@rule(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(self: Operand, boundaries: Spec, out_int32: bool) -> Spec:
    """For each value, the bucket it falls in."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return _positions(boundaries, self.shape if isinstance(self, Spec) else (), out_int32)


@rule(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(elements: Operand, test_elements: Operand, **_options: Any) -> Spec:
    """Whether each element is among the others."""
    for operand in (elements, test_elements):
        dtype = operand.dtype if isinstance(operand, Spec) else number_dtype(operand)
        if dtype is torch.bool or dtype.is_complex:
            name = dtype_name(dtype)
            raise RuntimeError(f"Unsupported input type encountered for isin(): {name}")
    device = common_device([spec for spec in (elements, test_elements) if isinstance(spec, Spec)])
    return Spec.of(
        elements.shape if isinstance(elements, Spec) else (), dtype=torch.bool, device=device
    )


@rule(aten.histc.default)
def histc(self: Spec, bins: Size) -> Spec:
    """Counts in bins of equal width."""
    return self.fresh((bins,))


@rule(
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.unique_dim_consecutive.default,
    aten._unique.default,
)
def unique() -> Spec:
    """The shape is in the data."""
    raise DataDependent(
        "the number of distinct elements depends on the contents of a tensor", aten._unique2.default
    )
