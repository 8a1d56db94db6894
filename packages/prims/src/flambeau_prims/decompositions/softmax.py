"""Softmax and log-softmax, and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import compute_dtype, wrap_dims
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten


def _shifted(b: Builder, x: Value, dims: tuple[int, ...]) -> tuple[Value, Value]:
    """The greatest element over dims, and x minus it."""
    if sizes.eq(x.spec.numel, 0):
        return b.sum(x, dims), x
    top = b.amax(x, dims)
    return top, b.sub(x, b.spread(top, dims, x.spec.shape))


def _normalized(b: Builder, shifted: Value, dims: tuple[int, ...]) -> Value:
    weights = b.exp(shifted)
    return b.div(weights, b.spread(b.sum(weights, dims), dims, weights.spec.shape))


@decomposition(aten._softmax.default)
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Any:
    """exp(x - max) over its sum."""
    if not x.spec.dtype.is_floating_point:
        return NotImplemented  # an empty tensor: eager refuses others
    dims = wrap_dims(dim, x.spec.ndim)
    return _normalized(b, _shifted(b, b.widen(x), dims)[1], dims)


@decomposition(aten._safe_softmax.default)
def safe_softmax(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """softmax, with zeros where all of a row is -inf."""
    dims = wrap_dims(dim, x.spec.ndim)
    x = b.cast(x, compute_dtype(b.result.dtype))
    top, shifted = _shifted(b, x, dims)
    masked = b.eq(top, -math.inf)
    return b.where(b.spread(masked, dims, x.spec.shape), 0.0, _normalized(b, shifted, dims))


@decomposition(aten._log_softmax.default)
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Any:
    """x - max - ln(sum of exp(x - max))."""
    if not x.spec.dtype.is_floating_point:
        return NotImplemented
    dims = wrap_dims(dim, x.spec.ndim)
    _, shifted = _shifted(b, b.widen(x), dims)
    total = b.log(b.sum(b.exp(shifted), dims))
    return b.sub(shifted, b.spread(total, dims, x.spec.shape))


@decomposition(aten._softmax_backward_data.default)
def softmax_backward(
    b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    """y * (grad - sum(grad * y))."""
    grad, y = b.promote([grad, y])
    dims = wrap_dims(dim, y.spec.ndim)
    product = b.mul(grad, y)
    return b.sub(product, b.mul(y, b.spread(b.sum(product, dims), dims, y.spec.shape)))


@decomposition(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    """grad - exp(y) * sum(grad)."""
    grad, y = b.promote([grad, y])
    dims = wrap_dims(dim, y.spec.ndim)
    return b.sub(grad, b.mul(b.exp(y), b.spread(b.sum(grad, dims), dims, y.spec.shape)))
