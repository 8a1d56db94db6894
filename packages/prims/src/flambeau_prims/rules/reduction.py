"""Shape rules of reductions (sum, mean, var, amax, any, norm ...) and scans (cumsum ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from flambeau_prims.promotion import dtype_name, is_integral, real_dtype
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.pointwise import not_implemented, sub
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, wrap_dim, wrap_dims

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten

Dims: TypeAlias = "int | Sequence[int] | None"
Dtype: TypeAlias = "torch.dtype | None"


# 1. One reduction


def reduced_dims(ndim: int, dim: Dims) -> tuple[int, ...]:
    """The dimensions a reduction removes; None and () mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    if ndim > 64:  # a bit for each in ATen/WrapDimUtilsMulti.h
        raise RuntimeError("only tensors with up to 64 dims are supported")
    dims = wrap_dims((dim,) if isinstance(dim, int) else dim, ndim)
    return dims if ndim else ()


def reduced_shape(shape: Sizes, dim: Dims, keepdim: bool) -> tuple[Size, ...]:
    """The shape with the reduced dimensions gone, or of size 1 with `keepdim`."""
    gone = reduced_dims(len(shape), dim)
    if keepdim:
        return tuple(1 if d in gone else size for d, size in enumerate(shape))
    return tuple(size for d, size in enumerate(shape) if d not in gone)


def reduce(self: Spec, dim: Dims, keepdim: bool, dtype: torch.dtype) -> Spec:
    """A fresh row-major tensor of the reduced shape."""
    return self.fresh(reduced_shape(self.shape, dim, keepdim), dtype=dtype)


def _check_not_empty(self: Spec, dim: Dims, name: str) -> None:
    for d in reduced_dims(self.ndim, dim):
        if eq(self.shape[d], 0):
            raise IndexError(f"{name}: Expected reduction dim {d} to have non-zero size.")


# 2. Sums, products, means


def _sum_dtype(self: Spec, dtype: Dtype) -> torch.dtype:
    return dtype or (torch.int64 if is_integral(self.dtype) else self.dtype)


@rule(*overloads("sum"), *overloads("prod"))
def sum_(self: Spec, dim: Dims = None, keepdim: bool = False, dtype: Dtype = None) -> Spec:
    """Integers add up, or multiply, in int64."""
    return reduce(self, dim, keepdim, _sum_dtype(self, dtype))


@rule(*overloads("nansum"))
def nansum(self: Spec, dim: Dims = None, keepdim: bool = False, dtype: Dtype = None) -> Spec:
    """As sum, of real numbers on CPU."""
    if self.device.type == "cpu" and self.dtype.is_complex:
        raise RuntimeError("nansum on CPU does not support complex inputs")
    return sum_(self, dim, keepdim, dtype)


@rule(*overloads("mean"))
def mean(self: Spec, dim: Dims = None, keepdim: bool = False, dtype: Dtype = None) -> Spec:
    """Needs a floating dtype."""
    dtype = dtype or self.dtype
    if is_integral(dtype):
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point "
            f"or complex dtype. Got: {dtype_name(dtype)}"
        )
    return reduce(self, dim, keepdim, dtype)


@rule(*overloads("var"), *overloads("std"))
def var(self: Spec, dim: Dims = None, keepdim: bool = False) -> Spec:
    """Variance and deviation are real."""
    if is_integral(self.dtype):
        raise RuntimeError("std and var only support floating point and complex dtypes")
    return reduce(self, dim, keepdim, real_dtype(self.dtype))


@rule(*overloads("var_mean"), *overloads("std_mean"))
def var_mean(self: Spec, dim: Dims = None, keepdim: bool = False) -> tuple[Spec, Spec]:
    """The variance (or deviation), and the mean."""
    spread = var(self, dim, keepdim)
    return spread, spread.replace(dtype=self.dtype)


@rule(*overloads("logsumexp"))
def logsumexp(self: Spec, dim: Sequence[int], keepdim: bool = False) -> Spec:
    """Integers become floating."""
    if self.shape and not dim and not keepdim and not is_empty(self.shape):
        raise RuntimeError(
            f"logsumexp: no dimension given for a tensor of shape {list(self.shape)}"
        )
    dtype = torch.get_default_dtype() if is_integral(self.dtype) else self.dtype
    return reduce(self, dim, keepdim, dtype)


# 3. Extrema, any, all


@rule(*overloads("amax"), *overloads("amin"))
def amax(self: Spec, dim: Sequence[int] = (), keepdim: bool = False) -> Spec:
    """The dtype kept."""
    if self.dtype.is_complex:
        raise not_implemented("amax", self.dtype)
    _check_not_empty(self, dim, "amax()")
    return reduce(self, dim, keepdim, self.dtype)


@rule(*overloads("aminmax"))
def aminmax(self: Spec, *, dim: int | None = None, keepdim: bool = False) -> tuple[Spec, Spec]:
    """Minimum and maximum."""
    if self.dtype.is_complex:
        raise not_implemented("aminmax", self.dtype)
    _check_not_empty(self, dim, "aminmax()")
    result = reduce(self, dim, keepdim, self.dtype)
    return result, result


def _extremum(name: str) -> Callable[[Spec], Spec]:
    def extremum(self: Spec) -> Spec:
        """Over all elements, of which there must be one."""
        if self.dtype.is_complex:
            raise not_implemented("max_all", self.dtype)
        if is_empty(self.shape):
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        return reduce(self, None, False, self.dtype)

    return extremum


largest = rule(aten.max.default)(_extremum("max"))
smallest = rule(aten.min.default)(_extremum("min"))


@rule(aten.median.default, aten.nanmedian.default)
def median(self: Spec) -> Spec:
    """The lower median of all elements; NaN of none."""
    if self.dtype.is_complex:
        raise not_implemented("median", self.dtype)
    return reduce(self, None, False, self.dtype)


@rule(aten.max.dim, aten.min.dim, aten.kthvalue.default)
def extremum_along(self: Spec, dim: int, keepdim: bool) -> tuple[Spec, Spec]:
    """The maxima (minima, k-th smallest values) along a dimension, and their indices."""
    if self.dtype.is_complex:
        raise RuntimeError("max does not support complex inputs.")
    _check_not_empty(self, wrap_dim(dim, self.ndim), "max()")
    values = reduce(self, dim, keepdim, self.dtype)
    return values, values.replace(dtype=torch.int64)


@rule(aten.mode.default)
def mode(self: Spec, dim: int = -1, keepdim: bool = False) -> tuple[Spec, Spec]:
    """The most frequent value along a dimension, and its index."""
    if self.dtype.is_complex and self.shape:
        raise not_implemented("mode", self.dtype)
    _check_not_empty(self, dim, "mode()")
    values = reduce(self, dim, keepdim, self.dtype)
    return values, values.replace(dtype=torch.int64)


@rule(aten.median.dim, aten.nanmedian.dim)
def median_along(self: Spec, dim: int = -1, keepdim: bool = False) -> tuple[Spec, Spec]:
    """The lower median along a dimension, and its index."""
    if self.dtype == torch.bool:
        raise not_implemented("median", self.dtype)
    return extremum_along(self, dim, keepdim)


@rule(*overloads("argmax"), *overloads("argmin"))
def argmax(self: Spec, dim: int | None = None, keepdim: bool = False) -> Spec:
    """An index, flat if no dimension is given."""
    if self.dtype.is_complex or self.dtype == torch.bool:
        raise RuntimeError(f"argmax(): does not support {dtype_name(self.dtype)} input")
    _check_not_empty(self, dim, "argmax()")
    return reduce(self, dim, keepdim, torch.int64)


@rule(*overloads("any"), *overloads("all"))
def any_(self: Spec, dim: Dims = None, keepdim: bool = False) -> Spec:
    """bool, but uint8 for uint8; an empty list of dimensions reduces nothing."""
    if isinstance(dim, tuple) and not dim:
        return self.fresh(dtype=any_(self).dtype)
    return reduce(self, dim, keepdim, torch.uint8 if self.dtype == torch.uint8 else torch.bool)


@rule(*overloads("count_nonzero"))
def count_nonzero(self: Spec, dim: Dims = None) -> Spec:
    """A count."""
    return reduce(self, dim, False, torch.int64)


# 4. Norms


@rule(*overloads("norm"), aten.linalg_vector_norm.default)
def vector_norm(self: Spec, dim: Dims = None, keepdim: bool = False, dtype: Dtype = None) -> Spec:
    """Real and floating."""
    dtype = dtype or self.dtype
    if is_integral(dtype):
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. "
            f"Got {dtype_name(dtype)}"
        )
    return reduce(self, dim, keepdim, real_dtype(dtype))


@rule(aten.dist.default)
def dist(self: Spec, other: Spec) -> Spec:
    """The norm of a difference; refuses integers."""
    difference = sub(self, other)
    if is_integral(difference.dtype):
        raise RuntimeError(
            f"norm(): input dtype should be either floating point or complex. Got "
            f"{dtype_name(difference.dtype)} instead."
        )
    return difference.fresh((), dtype=real_dtype(difference.dtype))


# 5. Scans


def scan(self: Spec, dim: int, *, dtype: Dtype = None) -> Spec:
    """Row-major, with self's shape; integers in int64."""
    wrap_dim(dim, self.ndim)
    return self.fresh(dtype=_sum_dtype(self, dtype))


@rule(*overloads("cumsum"), *overloads("cumprod"))
def cumsum(self: Spec, dim: int, *, dtype: Dtype = None) -> Spec:
    """A running sum or product."""
    return scan(self, dim, dtype=dtype)


@rule(*overloads("cumsum_"), *overloads("cumprod_"))
def cumsum_(self: Spec, dim: int, *, dtype: Dtype = None) -> Spec:
    """self."""
    wrap_dim(dim, self.ndim)
    if self.dtype == torch.bool and self.shape:
        raise not_implemented("cumsum_out", self.dtype)
    if dtype is not None and dtype != self.dtype:
        raise RuntimeError(
            f"Bad in-place call: input tensor dtype {dtype_name(self.dtype)} and output "
            f"tensor dtype {dtype_name(dtype)} should match"
        )
    return self


@rule(*overloads("logcumsumexp"))
def logcumsumexp(self: Spec, dim: int) -> Spec:
    """A running logsumexp."""
    if is_integral(self.dtype):
        raise not_implemented("logcumsumexp", self.dtype)
    return scan(self, dim, dtype=self.dtype)


@rule(aten.cummax.default, aten.cummin.default)
def cummax(self: Spec, dim: int) -> tuple[Spec, Spec]:
    """Running extrema, and their indices."""
    if self.dtype.is_complex and self.shape:
        raise not_implemented("cummax", self.dtype)
    values = scan(self, dim, dtype=self.dtype)
    return values, values.replace(dtype=torch.int64)


@rule(aten.value_selecting_reduction_backward.default)
def value_selecting_reduction_backward(grad: Spec, sizes: Sizes) -> Spec:
    """Zeros with the gradient where the value was selected."""
    return grad.fresh(sizes)


@rule(aten.hash_tensor.default)
def hash_tensor(self: Spec, dim: Sequence[int], keepdim: bool) -> Spec:
    """A number of 64 bits for each set of elements."""
    return reduce(self, dim, keepdim, torch.uint64)
