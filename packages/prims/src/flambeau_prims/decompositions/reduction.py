"""Reductions: sums, extremes, means and moments, norms.

bfloat16 and float16 are accumulated in float32 and rounded once, integers and bool sum in int64, as
eager does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import compute_dtype, wrap_dims
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.size_floats import as_float, float_of
from flambeau_prims.sizes import Expr
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

Dims: TypeAlias = "Sequence[int] | None"


def finish(b: Builder, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """A reduction's result with the reduced dims back, as size 1, if they are kept."""
    return b.restore(x, dims) if keepdim else x


def count(shape: Sequence[Size], dims: Sequence[int]) -> Size:
    """How many elements are folded into one."""
    total: Size = 1
    for d in dims:
        total = shape[d] * total
    return total


# Sums and products


def _accumulated(b: Builder, x: Value, primitive: str, dim: Any, keepdim: bool) -> Value:
    """A sum or product over dims, in the compute dtype of the result: of truths, any and all."""
    dims = wrap_dims(dim, x.spec.ndim)
    x = b.cast(x, compute_dtype(b.result.dtype))
    if x.spec.dtype is torch.bool:
        primitive = {"sum": "any", "prod": "all"}[primitive]
    return finish(b, getattr(b, primitive)(x, dims), dims, keepdim)


@decomposition(aten.sum.default, aten.sum.dim_IntList)
def sum_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, **_dtype: Any) -> Value:
    """Sums over dims, or the sum of all elements."""
    return _accumulated(b, x, "sum", dim, keepdim)


@decomposition(aten.nansum.default)
def nansum(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, **_dtype: Any) -> Value:
    """Sums over dims, NaN counting as 0, whatever dtype the sum has."""
    x = b.widen(x)
    if x.spec.dtype.is_floating_point:
        x = b.where(b.isnan(x), 0.0, x)
    return _accumulated(b, x, "sum", dim, keepdim)


@decomposition(aten.prod.default, aten.prod.dim_int)
def prod(
    b: Builder, x: Value, dim: int | None = None, keepdim: bool = False, **_dtype: Any
) -> Value:
    """Products over one dim, or the product of all elements."""
    return _accumulated(b, x, "prod", dim, keepdim)


@decomposition(aten.trace.default)
def trace(b: Builder, x: Value) -> Value:
    """The sum of a matrix's diagonal."""
    return b.sum(b.cast(b.diagonal(x, 0, 0, 1), compute_dtype(b.result.dtype)), (0,))


@decomposition(aten.count_nonzero.dim_IntList, aten.count_nonzero.default)
def count_nonzero(b: Builder, x: Value, dim: Dims | int = None) -> Value:
    """How many elements differ from 0."""
    return b.sum(b.cast(b.cast(x, torch.bool), torch.int64), wrap_dims(dim, x.spec.ndim))


# Means and moments


@decomposition(aten.mean.default, aten.mean.dim)
def mean_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, **_dtype: Any) -> Value:
    """Means over dims, or the mean of all elements."""
    dims = wrap_dims(dim, x.spec.ndim)
    return finish(b, mean(b, b.cast(x, compute_dtype(b.result.dtype)), dims), dims, keepdim)


def mean(b: Builder, x: Value, dims: tuple[int, ...]) -> Value:
    """The mean over dims of a tensor in its compute dtype."""
    return divide(b, b.sum(x, dims), count(x.spec.shape, dims))


def divide(b: Builder, x: Value, amount: Any) -> Value:
    """x / amount, a zero amount included (0 / 0 is NaN)."""
    if isinstance(amount, (int, float)) and amount != 0 and not isinstance(amount, bool):
        if math.frexp(amount)[0] == 0.5:  # a power of 2: the reciprocal is exact
            return b.mul(x, 1.0 / amount)
        return b.div(x, float(amount))
    return b.div(x, amount)


FEW_DEVIATIONS = 4
"""A mean of so many deviations from 0 is corrected: its rounding counts beside the deviations."""


def variance(
    b: Builder, x: Value, dims: tuple[int, ...], correction: Any, of_mean: bool = False
) -> tuple[Value, Value]:
    """Variance and mean over dims, in the compute dtype: the mean first, then deviations.

    Where the mean is large beside the deviations, both are corrected by what the deviations from
    the rounded mean sum to: the mean of equal numbers is that number, and their variance is 0.
    `of_mean`: a mean of an infinity is NaN, as ATen's running mean.
    """
    near, total = mean(b, x, dims), count(x.spec.shape, dims)
    deviation = b.sub(x, b.spread(near, dims, x.spec.shape))
    squares, average = b.sum(b.mul(deviation, deviation), dims), near
    if not (sizes.known_eq(total, 0) or sizes.known_eq(total, 1)):
        is_far = b.gt(_times(b, b.mul(near, near), total, 1 / FEW_DEVIATIONS**2), squares)
        rest = b.sum(deviation, dims)
        shift = divide(b, rest, total)
        average = b.where(is_far, b.add(near, shift), near)
        corrected = b.maximum(b.sub(squares, b.mul(rest, shift)), 0.0)
        squares = b.where(is_far, corrected, squares)
        if of_mean:
            average = nan_with(b, squares, average)
    whole = int(correction)
    if not isinstance(total, Expr):
        freedom: Any = max(total - correction, 0)
    elif whole != correction:
        freedom = float_of("max", float_of("-", total, correction), 0.0)
    else:
        freedom = total - whole if sizes.gt(total, whole) else 0
    return divide(b, squares, freedom), average


def nan_with(b: Builder, spread: Value, average: Value) -> Value:
    """The mean, NaN where the variance is: ATen's running mean takes an infinity that it holds from
    what follows.
    """
    return b.where(b.ne(spread, spread), math.nan, average)


def _times(b: Builder, x: Value, amount: Size, factor: float) -> Value:
    """x * amount * factor."""
    if isinstance(amount, Expr):
        return b.mul(b.mul(x, amount), factor)
    return b.mul(x, amount * factor)


def moments(
    b: Builder, x: Value, dim: Dims, correction: Any, keepdim: bool, name: str
) -> Value | tuple[Value, Value]:
    """The variance, or with "std" in the name the deviation; with "mean" in it, the mean too."""
    dims = wrap_dims(dim, x.spec.ndim)
    correction = 1 if correction is None else correction
    spread, average = variance(b, b.widen(x), dims, correction, of_mean=True)
    spread = finish(b, b.sqrt(spread) if "std" in name else spread, dims, keepdim)
    return (spread, finish(b, average, dims, keepdim)) if "mean" in name else spread


def _corrected(
    b: Builder, x: Value, dim: Dims = None, *, correction: Any = None, keepdim: bool = False,
    name: str,
) -> Any:  # fmt: skip
    return moments(b, x, dim, correction, keepdim, name)


def _unbiased_or_not(
    b: Builder, x: Value, dim: Dims = None, unbiased: bool = True, keepdim: bool = False, *,
    name: str,
) -> Any:  # fmt: skip
    return moments(b, x, dim, int(unbiased), keepdim, name)


def _of_all(b: Builder, x: Value, unbiased: bool = True, *, name: str) -> Any:
    return moments(b, x, None, int(unbiased), False, name)


for _name in ("var", "std", "var_mean", "std_mean"):
    _packet = getattr(aten, _name)
    decomposition(_packet.correction)(partial(_corrected, name=_name))
    decomposition(_packet.dim)(partial(_unbiased_or_not, name=_name))
    decomposition(_packet.default)(partial(_of_all, name=_name))


# Norms


@decomposition(
    aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim_dtype,
)  # fmt: skip
def vector_norm(
    b: Builder, x: Value, ord: Any = 2, dim: Dims = None, keepdim: bool = False, **_dtype: Any
) -> Value:
    """The p-norm over dims, taken as one vector."""
    dims = wrap_dims(dim, x.spec.ndim)
    x = b.abs(b.cast(x, compute_dtype(b.result.dtype)))
    return finish(b, _norm(b, x, 2 if ord is None else ord, dims), dims, keepdim)


def _norm(b: Builder, x: Value, order: Any, dims: tuple[int, ...]) -> Value:
    ord = as_float(order)  # decides which loop it is, so a symbolic one is specialised
    if ord in (math.inf, -math.inf):
        empty = sizes.eq(count(x.spec.shape, dims), 0)
        return NotImplemented if empty else b.amax(x, dims) if ord > 0 else b.amin(x, dims)
    if ord == 0:
        return b.sum(b.cast(b.ne(x, 0.0), x.spec.dtype), dims)
    if ord == 1 or all(sizes.eq(x.spec.shape[d], 1) for d in dims):  # nothing over- or underflows
        return b.sum(x, dims)
    if ord == 2:
        return b.sqrt(b.sum(b.mul(x, x), dims))
    return b.pow(b.sum(b.pow(x, ord), dims), 1.0 / ord)


@decomposition(aten.renorm.default)
def renorm(b: Builder, x: Value, p: Any, dim: int, maxnorm: Any) -> Any:
    """Slices of a dim whose p-norm is greater than maxnorm, shortened to that."""
    if not isinstance(p, (int, float)) or not isinstance(maxnorm, (int, float)):
        return NotImplemented
    if p <= 0 or maxnorm < 0 or not x.spec.dtype.is_floating_point:
        return NotImplemented  # eager's error
    wide = b.widen(x)
    kept = wrap_dim(dim, x.spec.ndim)
    dims = tuple(d for d in range(x.spec.ndim) if d != kept)
    norms = _norm(b, b.abs(wide), p, dims)
    if norms is NotImplemented:
        return NotImplemented
    shorter = b.div(b.tensor(maxnorm, norms.spec), b.add(norms, 1e-7))
    factor = b.where(b.gt(norms, maxnorm), shorter, 1.0)
    return b.mul(wide, b.spread(factor, dims, x.spec.shape))


@decomposition(aten.dist.default)
def dist(b: Builder, x: Value, y: Value, p: Any = 2) -> Value:
    """The p-norm of a difference."""
    return vector_norm(b, b.sub(*b.promote([x, y])), p)


@decomposition(aten.logsumexp.default)
def logsumexp(b: Builder, x: Value, dim: Sequence[int], keepdim: bool = False) -> Value:
    """ln of the sum of exponentials, with the greatest element taken out first."""
    dims = wrap_dims(dim, x.spec.ndim)
    (x,) = b.promote([x], to_float=True)
    if sizes.eq(x.spec.numel, 0):
        return finish(b, b.log(b.sum(b.exp(x), dims)), dims, keepdim)
    top = b.amax(x, dims)
    # Where all elements are -inf, or one is inf, the difference would be NaN.
    top = b.where(b.isinf(top), 0.0, top)
    total = b.log(b.sum(b.exp(b.sub(x, b.spread(top, dims, x.spec.shape))), dims))
    return finish(b, b.add(total, top), dims, keepdim)


# Extremes


def _extreme(b: Builder, x: Value, dims: tuple[int, ...], primitive: str, keepdim: bool) -> Value:
    return finish(b, getattr(b, primitive)(b.widen(x), dims), dims, keepdim)


@decomposition(aten.amax.default, aten.max.default)
def amax(b: Builder, x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
    """The greatest over dims, or of all elements."""
    return _extreme(b, x, wrap_dims(dim, x.spec.ndim), "amax", keepdim)


@decomposition(aten.amin.default, aten.min.default)
def amin(b: Builder, x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
    """The least over dims, or of all elements."""
    return _extreme(b, x, wrap_dims(dim, x.spec.ndim), "amin", keepdim)


@decomposition(aten.aminmax.default)
def aminmax(
    b: Builder, x: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """The least and the greatest."""
    dims = wrap_dims(dim, x.spec.ndim)
    return _extreme(b, x, dims, "amin", keepdim), _extreme(b, x, dims, "amax", keepdim)


@decomposition(aten.max.dim)
def max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The greatest over one dim, and its index."""
    return amax(b, x, [dim], keepdim), argmax(b, x, dim, keepdim)


@decomposition(aten.min.dim)
def min_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The least over one dim, and its index."""
    return amin(b, x, [dim], keepdim), argmin(b, x, dim, keepdim)


@decomposition(aten.argmax.default)
def argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Index of the greatest, of the flattened tensor without a dim."""
    return _index_of(b, x, dim, keepdim, "argmax")


@decomposition(aten.argmin.default)
def argmin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Index of the least, of the flattened tensor without a dim."""
    return _index_of(b, x, dim, keepdim, "argmin")


def _index_of(b: Builder, x: Value, dim: int | None, keepdim: bool, primitive: str) -> Value:
    x = b.widen(x)
    if not x.spec.shape:
        return b.full((), 0, torch.int64, x.spec.device)
    if dim is None:
        flat = getattr(b, primitive)(b.reshape(x, (x.spec.numel,)), 0)
        return b.reshape(flat, (1,) * x.spec.ndim) if keepdim else flat
    dim = wrap_dim(dim, x.spec.ndim)
    return finish(b, getattr(b, primitive)(x, dim), (dim,), keepdim)


@decomposition(aten.value_selecting_reduction_backward.default)
def value_selecting_backward(
    b: Builder, grad: Value, dim: int, indices: Value, sizes: Sequence[Size], keepdim: bool
) -> Any:
    """The gradient where the value came from, 0 elsewhere."""
    shape = tuple(sizes)
    if not shape:
        return grad
    dim = wrap_dim(dim, len(shape))
    if keepdim:
        grad, indices = b.squeeze(grad, (dim,)), b.squeeze(indices, (dim,))
    places = b.along(b.iota(shape[dim], 0, 1, torch.int64, grad.spec.device), (dim,), shape)
    hit = b.eq(places, b.spread(indices, (dim,), shape))
    return b.where(hit, b.spread(grad, (dim,), shape), 0)


# Truth


def _truth(
    b: Builder, x: Value, dim: Dims | int = None, keepdim: bool = False, *, primitive: str
) -> Value:
    """Whether any element (all elements) over dims differ from 0."""
    dims = wrap_dims(dim, x.spec.ndim)
    truth = finish(b, getattr(b, primitive)(b.cast(x, torch.bool), dims), dims, keepdim)
    return b.cast(truth, b.result.dtype)


for _name in ("any", "all"):
    _packet = getattr(aten, _name)
    decomposition(_packet.default, _packet.dim, _packet.dims)(partial(_truth, primitive=_name))
