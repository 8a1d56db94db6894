"""Losses and their gradients.  `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.decompositions.reduction import count, divide, mean
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2


def reduced(b: Builder, loss: Value, reduction: int) -> Value:
    """The loss of all elements, as the reduction says."""
    dims = tuple(range(loss.spec.ndim))
    if reduction == NONE:
        return loss
    return mean(b, loss, dims) if reduction == MEAN else b.sum(loss, dims)


def _scaled_gradient(b: Builder, grad: Value, x: Value, reduction: int) -> Value:
    """The incoming gradient over the number of elements that a mean was taken of."""
    if reduction != MEAN:
        return grad
    return divide(b, grad, count(x.spec.shape, range(x.spec.ndim)))


# Regression


@decomposition(aten.mse_loss.default)
def mse_loss(b: Builder, x: Value, target: Value, reduction: int = MEAN) -> Value:
    """(x - target)**2."""
    d = b.sub(*b.promote([x, target]))
    return reduced(b, b.mul(d, d), reduction)


@decomposition(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    """2 (x - target) grad."""
    grad, x, target = b.promote([grad, x, target])
    slope = b.mul(b.sub(x, target), 2.0)
    return b.cast(b.mul(slope, _scaled_gradient(b, grad, x, reduction)), b.result.dtype)


@decomposition(aten.smooth_l1_loss.default)
def smooth_l1_loss(
    b: Builder, x: Value, target: Value, reduction: int = MEAN, beta: float = 1.0
) -> Value:
    """d**2 / (2 beta) for |d| < beta, else |d| - beta / 2."""
    z = b.abs(b.sub(*b.promote([x, target])))
    if beta == 0:
        return reduced(b, z, reduction)
    inside = b.div(b.mul(b.mul(z, z), 0.5), beta)
    return reduced(b, b.where(b.lt(z, beta), inside, b.sub(z, 0.5 * beta)), reduction)


@decomposition(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, reduction: int, beta: float
) -> Value:
    """grad * d / beta, its magnitude at most grad's."""
    grad, x, target = b.promote([grad, x, target])
    grad = _scaled_gradient(b, grad, x, reduction)
    d = b.sub(x, target)
    inside = b.div(b.mul(d, grad), beta) if beta != 0 else grad
    slope = b.where(b.le(d, -beta), b.neg(grad), b.where(b.ge(d, beta), grad, inside))
    return b.cast(slope, b.result.dtype)


@decomposition(aten.huber_loss.default)
def huber_loss(
    b: Builder, x: Value, target: Value, reduction: int = MEAN, delta: float = 1.0
) -> Value:
    """d**2 / 2 for |d| <= delta, else delta (|d| - delta / 2)."""
    z = b.abs(b.sub(*b.promote([x, target])))
    outside = b.mul(b.sub(z, 0.5 * delta), delta)
    loss = reduced(b, b.where(b.le(z, delta), b.mul(b.mul(z, z), 0.5), outside), reduction)
    return b.cast(loss, b.result.dtype)


@decomposition(aten.huber_loss_backward.default)
def huber_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, reduction: int, delta: float
) -> Value:
    """grad * d, d within [-delta, delta]."""
    grad, x, target = b.promote([grad, x, target])
    grad = _scaled_gradient(b, grad, x, reduction)
    d = b.sub(x, target)
    far = b.mul(grad, delta)
    slope = b.where(b.le(d, -delta), b.neg(far), b.where(b.ge(d, delta), far, b.mul(d, grad)))
    return b.cast(slope, b.result.dtype)


@decomposition(aten.soft_margin_loss.default)
def soft_margin_loss(b: Builder, x: Value, target: Value, reduction: int = MEAN) -> Value:
    """log1p(exp(-x target))."""
    x, target = b.promote([x, target])
    return reduced(b, b.log1p(b.exp(b.neg(b.mul(x, target)))), reduction)


@decomposition(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, reduction: int
) -> Value:
    """-target * sigmoid(-x target) * grad."""
    grad, x, target = b.promote([grad, x, target])
    z = b.exp(b.neg(b.mul(x, target)))
    slope = b.neg(b.div(b.mul(target, z), b.add(z, 1.0)))
    return b.cast(b.mul(slope, _scaled_gradient(b, grad, x, reduction)), b.result.dtype)


# Binary cross entropy


@decomposition(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    b: Builder, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """-(target ln x + (1 - target) ln(1 - x)), each logarithm at least -100."""
    x, target, *weights = b.promote([x, target, *([] if weight is None else [weight])])
    if x.spec.device.type == "cpu":  # where eager looks
        b.check(b.bitwise_and(b.ge(x, 0.0), b.le(x, 1.0)))
        b.check(b.bitwise_and(b.ge(target, 0.0), b.le(target, 1.0)))
    of_one = b.maximum(b.log(x), -100.0)
    of_zero = b.maximum(b.log1p(b.neg(x)), -100.0)
    loss = b.sub(b.mul(b.sub(target, 1.0), of_zero), b.mul(target, of_one))
    return reduced(b, b.mul(loss, weights[0]) if weights else loss, reduction)


@decomposition(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """grad * (x - target) / max(x (1 - x), 1e-12)."""
    grad, x, target, *weights = b.promote([grad, x, target, *([] if weight is None else [weight])])
    slope = b.div(b.sub(x, target), b.maximum(b.mul(b.sub(1.0, x), x), 1e-12))
    product = b.mul(_scaled_gradient(b, grad, x, reduction), slope)
    return b.mul(product, weights[0]) if weights else product


@decomposition(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: Builder,
    x: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """(1 - target) x + (1 + (pos_weight - 1) target) softplus(-x), of target's dtype."""
    dtype = target.spec.dtype
    extra = [item for item in (weight, pos_weight) if item is not None]
    x, target, *extra = b.promote([x, target, *extra])
    softplus = b.add(b.log1p(b.exp(b.neg(b.abs(x)))), b.maximum(b.neg(x), 0.0))
    if pos_weight is not None:
        softplus = b.mul(softplus, b.add(b.mul(b.sub(extra[-1], 1.0), target), 1.0))
    loss = b.add(b.mul(b.sub(1.0, target), x), softplus)
    loss = b.mul(loss, extra[0]) if weight is not None else loss
    return b.cast(reduced(b, loss, reduction), dtype)


# Negative log likelihood


def _chosen(
    b: Builder, x: Value, target: Value, weight: Value | None, ignore_index: Size
) -> tuple[Value, Value, Value]:
    """For each target: whether it counts, its class and its weight (both 0 if it does not)."""
    target = b.cast(target, torch.int64)
    counts = b.ne(target, ignore_index)
    classes = b.where(counts, target, 0)
    if weight is None:
        weights = b.cast(counts, x.spec.dtype)
    else:
        weights = b.where(counts, b.index(b.cast(weight, x.spec.dtype), [classes]), 0.0)
    return counts, classes, weights


@decomposition(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: Size
) -> tuple[Value, Value]:
    """-weight[target] * x[target] along the class dim, and the sum of those weights."""
    x = b.widen(x)
    dim = 0 if x.spec.ndim == 1 else 1
    if x.spec.ndim == 1:
        target = b.reshape(target, ())
    counts, classes, weights = _chosen(b, x, target, weight, ignore_index)
    picked = b.squeeze(b.gather(x, dim, b.unsqueeze(classes, dim)), (dim,))
    loss = b.where(counts, b.neg(b.mul(picked, weights)), 0.0)
    total = b.sum(weights, tuple(range(weights.spec.ndim)))
    if reduction == NONE:
        # Of a batch, eager leaves the sum at 0.
        return loss, (total if x.spec.ndim == 1 else b.tensor(0.0, total.spec))
    loss = b.sum(loss, tuple(range(loss.spec.ndim)))
    return (b.div(loss, total) if reduction == MEAN else loss), total


@decomposition(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int,
    ignore_index: Size,
    total_weight: Value,
) -> Value:  # fmt: skip
    """-weight[target] * grad at each target's class, 0 elsewhere."""
    dtype = b.widen(x).spec.dtype
    x, grad = b.cast(x, dtype), b.cast(grad, dtype)
    dim = 0 if x.spec.ndim == 1 else 1
    target = b.reshape(target, x.spec.shape[:dim] + x.spec.shape[dim + 1 :])
    if reduction == MEAN:
        grad = b.div(grad, b.cast(total_weight, dtype))
    _, classes, weights = _chosen(b, x, target, weight, ignore_index)
    slope = b.neg(b.mul(weights, b.expand(grad, weights.spec.shape)))
    places = b.along(
        b.iota(x.spec.shape[dim], 0, 1, torch.int64, x.spec.device), (dim,), x.spec.shape
    )
    hit = b.eq(places, b.spread(classes, (dim,), x.spec.shape))
    # A target that does not count has class 0 and weight 0, but the gradient may be inf or NaN:
    # choose, do not multiply.
    counts = b.ne(b.cast(target, torch.int64), ignore_index)
    hit = b.bitwise_and(hit, b.spread(counts, (dim,), x.spec.shape))
    return b.where(hit, b.spread(slope, (dim,), x.spec.shape), 0.0)
