"""Activations and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.pointwise import clip
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten


# relu and its relatives


@decomposition(aten.relu.default)
def relu(b: Builder, x: Value) -> Value:
    """max(x, 0)."""
    return clip(b, b.widen(x), 0, None)


@decomposition(aten.relu6.default)
def relu6(b: Builder, x: Value) -> Value:
    """x within [0, 6]."""
    return hardtanh(b, x, 0, 6)


@decomposition(aten.threshold.default)
def threshold(b: Builder, x: Value, threshold: Any, value: Any) -> Value:
    """x above the threshold (or NaN), else `value`."""
    x = b.widen(x)
    return b.where(b.le(x, threshold), value, x)


@decomposition(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad: Value, x: Value, threshold: Any) -> Value:
    """The gradient where x is above the threshold, else 0."""
    grad, x = b.promote([grad, x])
    return b.where(b.le(x, threshold), 0, grad)


@decomposition(aten.hardtanh.default)
def hardtanh(b: Builder, x: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    """x within [min_val, max_val]."""
    return clip(b, b.widen(x), min_val, max_val)


@decomposition(aten.hardtanh_backward.default)
def hardtanh_backward(b: Builder, grad: Value, x: Value, min_val: Any, max_val: Any) -> Value:
    """The gradient strictly inside, else 0."""
    grad, x = b.promote([grad, x])
    outside = b.bitwise_or(b.le(x, min_val), b.ge(x, max_val))
    return b.where(outside, 0.0, grad)


@decomposition(aten.leaky_relu.default)
def leaky_relu(b: Builder, x: Value, negative_slope: Any = 0.01) -> Value:
    """x, or slope * x below 0."""
    x = b.widen(x)
    return b.where(b.gt(x, 0), x, b.mul(x, negative_slope))


@decomposition(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    b: Builder, grad: Value, x: Value, negative_slope: Any, self_is_result: bool
) -> Value:
    """The result has the sign of x, so either serves."""
    grad, x = b.promote([grad, x])
    return b.where(b.gt(x, 0), grad, b.mul(grad, negative_slope))


@decomposition(aten._prelu_kernel.default)
def prelu(b: Builder, x: Value, weight: Value) -> Value:
    """x, or weight * x below 0."""
    x, weight = b.promote([x, weight])
    return b.where(b.gt(x, 0), x, b.mul(weight, x))


@decomposition(aten._prelu_kernel_backward.default)
def prelu_backward(b: Builder, grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    """Gradients of x and, elementwise, of the weight."""
    grad, x, weight = b.promote([grad, x, weight])
    positive = b.gt(x, 0)
    return b.where(positive, grad, b.mul(weight, grad)), b.where(positive, 0.0, b.mul(x, grad))


@decomposition(aten.hardshrink.default)
def hardshrink(b: Builder, x: Value, lambd: Any = 0.5) -> Value:
    """x outside [-lambd, lambd], 0 inside."""
    wide = b.widen(x)
    return b.where(b.bitwise_and(b.ge(wide, -lambd), b.le(wide, lambd)), 0.0, wide)


@decomposition(aten.softshrink.default)
def softshrink(b: Builder, x: Value, lambd: Any = 0.5) -> Value:
    """x brought nearer to 0 by lambd; 0 inside [-lambd, lambd], NaN for NaN."""
    wide = b.widen(x)
    below = b.where(b.lt(wide, -lambd), b.add(wide, lambd), b.mul(wide, 0.0))
    return b.where(b.gt(wide, lambd), b.sub(wide, lambd), below)


@decomposition(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(b: Builder, grad: Value, x: Value, lambd: Any) -> Value:
    """The gradient outside [-lambd, lambd], 0 inside."""
    grad, x = b.promote([grad, x])
    return b.where(b.bitwise_and(b.ge(x, -lambd), b.le(x, lambd)), 0.0, grad)


# Sigmoids


def logistic(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)) of a tensor in its compute dtype."""
    return b.reciprocal(b.add(b.exp(b.neg(x)), 1.0))


@decomposition(aten.sigmoid.default)
def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    (x,) = b.promote([x], to_float=True)
    return logistic(b, x)


@decomposition(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, grad: Value, y: Value) -> Value:
    """grad * (1 - y) * y."""
    grad, y = b.promote([grad, y])
    return b.mul(b.mul(grad, b.sub(1.0, y)), y)


@decomposition(aten.tanh_backward.default)
def tanh_backward(b: Builder, grad: Value, y: Value) -> Value:
    """grad * (1 - y**2)."""
    grad, y = b.promote([grad, y])
    return b.mul(grad, b.sub(1.0, b.mul(y, y)))


@decomposition(aten.silu.default)
def silu(b: Builder, x: Value) -> Value:
    """x / (1 + exp(-x))."""
    (x,) = b.promote([x], to_float=True)
    return b.div(x, b.add(b.exp(b.neg(x)), 1.0))


@decomposition(aten.silu_backward.default)
def silu_backward(b: Builder, grad: Value, x: Value) -> Value:
    """grad * s * (1 + x * (1 - s)), s the sigmoid of x."""
    grad, x = b.promote([grad, x])
    s = logistic(b, x)
    return b.mul(b.mul(grad, s), b.add(b.mul(x, b.sub(1.0, s)), 1.0))


@decomposition(aten.log_sigmoid_forward.default)
def log_sigmoid(b: Builder, x: Value) -> tuple[Value, Value]:
    """min(x, 0) - log1p(exp(-|x|)), and what the CPU's gradient keeps: exp(-|x|), or nothing."""
    buffer = b.results[1]
    x = b.widen(x)
    z = b.exp(b.neg(b.abs(x)))
    y = b.sub(b.minimum(x, 0.0), b.log1p(z))
    assert buffer is not None
    kept = (
        z
        if buffer.shape == x.spec.shape
        else b.full(buffer.shape, 0.0, buffer.dtype, buffer.device)
    )
    return y, kept


@decomposition(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, grad: Value, x: Value, buffer: Value) -> Value:
    """grad * sigmoid(-x)."""
    grad, x = b.promote([grad, x])
    z = b.exp(b.neg(b.abs(x)))
    part = b.div(z, b.add(z, 1.0))
    return b.mul(grad, b.where(b.lt(x, 0.0), b.sub(1.0, part), part))


@decomposition(aten.hardsigmoid.default)
def hardsigmoid(b: Builder, x: Value) -> Value:
    """x / 6 + 1 / 2, within [0, 1]."""
    x = b.widen(x)
    return b.div(b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0), 6.0)


@decomposition(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, grad: Value, x: Value) -> Value:
    """grad / 6 strictly inside (-3, 3), else 0."""
    grad, x = b.promote([grad, x])
    inside = b.bitwise_and(b.gt(x, -3.0), b.lt(x, 3.0))
    return b.where(inside, b.mul(grad, 1.0 / 6.0), 0.0)


@decomposition(aten.hardswish.default)
def hardswish(b: Builder, x: Value) -> Value:
    """x * hardsigmoid(x)."""
    x = b.widen(x)
    return b.div(b.mul(x, b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0)), 6.0)


@decomposition(aten.hardswish_backward.default)
def hardswish_backward(b: Builder, grad: Value, x: Value) -> Value:
    """0 up to -3, grad * (x / 3 + 1 / 2) up to 3, grad beyond."""
    grad, x = b.promote([grad, x])
    ramp = b.mul(grad, b.add(b.div(x, 3.0), 0.5))
    return b.where(b.le(x, -3.0), 0.0, b.where(b.lt(x, 3.0), ramp, grad))


# gelu, mish

_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


def _gelu_inner(b: Builder, x: Value) -> Value:
    cube = b.mul(b.mul(x, x), x)
    return b.mul(b.add(x, b.mul(cube, _TANH_CUBIC)), _TANH_SCALE)


@decomposition(aten.gelu.default)
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    """x times the normal distribution function of x, or its tanh approximation."""
    x = b.widen(x)
    inner = b.tanh(_gelu_inner(b, x)) if approximate == "tanh" else b.erf(b.mul(x, math.sqrt(0.5)))
    return b.mul(b.mul(x, 0.5), b.add(inner, 1.0))


@decomposition(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    """grad * (cdf(x) + x * pdf(x))."""
    grad, x = b.promote([grad, x])
    if approximate == "tanh":
        t = b.tanh(_gelu_inner(b, x))
        cdf = b.mul(b.add(t, 1.0), 0.5)
        slope = b.mul(b.add(b.mul(b.mul(x, x), 3.0 * _TANH_CUBIC), 1.0), _TANH_SCALE)
        pdf = b.mul(b.mul(b.sub(1.0, b.mul(t, t)), slope), 0.5)
    else:
        cdf = b.mul(b.add(b.erf(b.mul(x, math.sqrt(0.5))), 1.0), 0.5)
        pdf = b.mul(b.exp(b.mul(b.mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return b.mul(grad, b.add(cdf, b.mul(x, pdf)))


@decomposition(aten.mish.default)
def mish(b: Builder, x: Value) -> Value:
    """x * tanh(softplus(x))."""
    x = b.widen(x)
    return b.mul(x, b.tanh(b.log1p(b.exp(x))))


@decomposition(aten.mish_backward.default)
def mish_backward(b: Builder, grad: Value, x: Value) -> Value:
    """grad * (t + x * sigmoid(x) * (1 - t**2)), t the tanh of softplus(x)."""
    grad, x = b.promote([grad, x])
    t = b.tanh(b.log1p(b.exp(x)))
    slope = b.mul(b.mul(x, logistic(b, x)), b.sub(1.0, b.mul(t, t)))
    return b.mul(grad, b.add(t, slope))


# Exponential ramps


@decomposition(aten.softplus.default)
def softplus(b: Builder, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    """log1p(exp(beta x)) / beta; x itself where beta x passes the threshold."""
    x = b.widen(x)
    scaled = b.mul(x, beta)
    return b.where(b.gt(scaled, threshold), x, b.div(b.log1p(b.exp(scaled)), beta))


@decomposition(aten.softplus_backward.default)
def softplus_backward(b: Builder, grad: Value, x: Value, beta: Any, threshold: Any) -> Value:
    """grad * sigmoid(beta x); grad itself past the threshold."""
    grad, x = b.promote([grad, x])
    scaled = b.mul(x, beta)
    z = b.exp(scaled)
    return b.where(b.gt(scaled, threshold), grad, b.div(b.mul(grad, z), b.add(z, 1.0)))


@decomposition(aten.elu.default)
def elu(b: Builder, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    """scale * x above 0, scale * alpha * expm1(input_scale x) below."""
    x = b.widen(x)
    below = b.mul(b.expm1(b.mul(x, input_scale)), alpha * scale)
    return b.where(b.le(x, 0), below, b.mul(x, scale))


@decomposition(aten.elu_backward.default)
def elu_backward(
    b: Builder, grad: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value
) -> Value:
    """From elu's argument, or (`is_result`) from its result."""
    grad, x = b.promote([grad, x])
    slope = alpha * scale
    if is_result:
        below = b.mul(b.mul(grad, input_scale), b.add(x, slope))
    else:
        below = b.mul(b.mul(grad, input_scale * slope), b.exp(b.mul(x, input_scale)))
    return b.where(b.le(x, 0), below, b.mul(grad, scale))


@decomposition(aten.celu.default)
def celu(b: Builder, x: Value, alpha: Any = 1.0) -> Value:
    """elu whose slope at 0 is 1."""
    return elu(b, x, alpha, 1.0, 1.0 / alpha)


@decomposition(aten.logit.default)
def logit(b: Builder, x: Value, eps: float | None = None) -> Value:
    """ln(x / (1 - x)), x first brought within [eps, 1 - eps]."""
    (x,) = b.promote([x], to_float=True)
    if eps is not None:
        x = b.minimum(b.maximum(x, eps), 1.0 - eps)
    return b.log(b.div(x, b.sub(1.0, x)))


@decomposition(aten.logit_backward.default)
def logit_backward(b: Builder, grad: Value, x: Value, eps: float | None = None) -> Value:
    """grad / (x * (1 - x)); below eps and above 1 - eps 0, or without eps NaN beyond [0, 1]."""
    grad, x = b.promote([grad, x])
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1.0 - eps, 0.0)
    beyond = b.bitwise_or(b.lt(x, low), b.gt(x, high))
    # Infinite at -0.0 as at 0.0.
    return b.where(beyond, outside, b.div(grad, b.mul(b.abs(x), b.sub(1.0, x))))


# Gated halves


def _halves(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    half = x.spec.shape[dim] // 2
    return b.slice(x, dim, 0, half, 1), b.slice(x, dim, half, x.spec.shape[dim], 1)


@decomposition(aten.glu.default)
def glu(b: Builder, x: Value, dim: int = -1) -> Value:
    """The first half times the sigmoid of the second."""
    first, gate = _halves(b, b.widen(x), wrap_dim(dim, x.spec.ndim))
    return b.mul(first, logistic(b, gate))


@decomposition(aten.glu_backward.default)
def glu_backward(b: Builder, grad: Value, x: Value, dim: int) -> Value:
    """Gradients of both halves, joined."""
    dim = wrap_dim(dim, x.spec.ndim)
    grad = b.widen(grad)
    first, gate = _halves(b, b.widen(x), dim)
    s = logistic(b, gate)
    of_first = b.mul(grad, s)
    of_gate = b.mul(b.mul(b.mul(grad, first), s), b.sub(1.0, s))
    return b.cat([of_first, of_gate], dim)
