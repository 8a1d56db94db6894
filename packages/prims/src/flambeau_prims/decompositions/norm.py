"""Normalizations: batch, layer, group, RMS and weight norm, forward and backward.

All compute in the compute dtype, with moments in two passes (`reduction.variance`); equal numbers
become exactly 0. With xhat = (x - mean) * rstd and gw = grad * weight, every gradient with respect
to x is  rstd * (gw - mean(gw) - xhat * mean(gw * xhat)),  means over what was normalized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims.builder import compute_dtype
from flambeau_prims.decompositions.reduction import count, divide, mean, nan_with, variance
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

Parameter: TypeAlias = "Value | None"


def _scale_and_shift(
    b: Builder, x: Value, weight: Parameter, bias: Parameter, dims: Sequence[int]
) -> Value:
    """x * weight + bias, those two lying along `dims` of x."""
    if weight is not None:
        x = b.mul(x, b.along(b.cast(weight, x.spec.dtype), dims, x.spec.shape))
    if bias is not None:
        x = b.add(x, b.along(b.cast(bias, x.spec.dtype), dims, x.spec.shape))
    return x


def _normalized(b: Builder, x: Value, average: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """(x - mean) * rstd, both repeated along `dims`."""
    centered = b.sub(x, b.spread(b.cast(average, x.spec.dtype), dims, x.spec.shape))
    return b.mul(centered, b.spread(b.cast(rstd, x.spec.dtype), dims, x.spec.shape))


def _reciprocal_deviation(b: Builder, spread: Value, eps: float) -> Value:
    return b.rsqrt(b.add(spread, eps))


def _gradient(
    b: Builder, gw: Value, xhat: Value, rstd: Value, dims: tuple[int, ...], *, centered: bool = True
) -> Value:
    """The gradient with respect to x of a normalization over `dims`."""
    shape = gw.spec.shape
    inner = b.sub(gw, b.mul(xhat, b.spread(mean(b, b.mul(gw, xhat), dims), dims, shape)))
    if centered:
        inner = b.sub(inner, b.spread(mean(b, gw, dims), dims, shape))
    return b.mul(inner, b.spread(b.cast(rstd, gw.spec.dtype), dims, shape))


def _weighted(b: Builder, grad: Value, weight: Parameter, dims: Sequence[int]) -> Value:
    if weight is None:
        return grad
    return b.mul(grad, b.along(b.cast(weight, grad.spec.dtype), dims, grad.spec.shape))


# Batch norm


def _batch_dims(x: Value) -> tuple[int, ...]:
    return tuple(d for d in range(x.spec.ndim) if d != 1)


def _batch_norm_eval(
    b: Builder,
    x: Value,
    weight: Parameter,
    bias: Parameter,
    running_mean: Value,
    running_var: Value,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalized by the running statistics; nothing is saved (results 1 and 2 are empty)."""
    wide = b.widen(x)
    rstd = _reciprocal_deviation(b, b.cast(running_var, wide.spec.dtype), eps)
    y = _normalized(b, wide, running_mean, rstd, _batch_dims(x))
    specs = [spec for spec in b.results[1:3] if spec is not None]
    saved = [b.full(spec.shape, 0, spec.dtype, spec.device) for spec in specs]
    return _scale_and_shift(b, y, weight, bias, (1,)), saved[0], saved[1]


def _batch_norm_train(
    b: Builder, x: Value, weight: Parameter, bias: Parameter, eps: float
) -> tuple[Value, Value, Value, Value]:
    """Normalized by the batch's statistics: result, mean, inverse deviation, biased variance."""
    wide = b.widen(x)
    dims = _batch_dims(x)
    spread, average = variance(b, wide, dims, 0)
    rstd = _reciprocal_deviation(b, spread, eps)
    y = _normalized(b, wide, average, rstd, dims)
    if x.spec.device.type == "cpu":
        # There ATen divides a sum: the mean of an infinity is that. Elsewhere it is NaN.
        average = b.where(b.ne(average, average), mean(b, wide, dims), average)
    else:
        average = nan_with(b, spread, average)
    return _scale_and_shift(b, y, weight, bias, (1,)), average, rstd, spread


@decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: Builder, x: Value, weight: Parameter, bias: Parameter, running_mean: Value,
    running_var: Value, training: bool, momentum: float, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    """Batch norm that returns the new running statistics."""
    if not training:
        results = _batch_norm_eval(b, x, weight, bias, running_mean, running_var, eps)
        return (*results, running_mean, running_var)
    y, average, rstd, spread = _batch_norm_train(b, x, weight, bias, eps)
    n = count(x.spec.shape, _batch_dims(x))
    unbiased = divide(b, b.mul(spread, n if isinstance(n, Expr) else float(n)), n - 1)
    new_mean = _moving_average(b, running_mean, average, momentum)
    return y, average, rstd, new_mean, _moving_average(b, running_var, unbiased, momentum)


def _moving_average(b: Builder, running: Value, new: Value, momentum: float) -> Value:
    dtype = compute_dtype(running.spec.dtype)
    return b.add(b.mul(b.cast(new, dtype), momentum), b.mul(b.cast(running, dtype), 1.0 - momentum))


@decomposition(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    b: Builder, x: Value, weight: Parameter, bias: Parameter, running_mean: Value,
    running_var: Value, momentum: float, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    """Batch norm in training that also returns (unused) workspace and the new statistics."""
    y, average, rstd, new_mean, new_var = batch_norm_functional(
        b, x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    workspace = b.results[3]
    assert workspace is not None
    unused = b.empty(workspace.shape, workspace.dtype, workspace.device)
    return y, average, rstd, unused, new_mean, new_var


@decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    b: Builder, x: Value, weight: Parameter, bias: Parameter, running_mean: Value,
    running_var: Value, momentum: float, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    """Batch norm by running statistics."""
    return _batch_norm_eval(b, x, weight, bias, running_mean, running_var, eps)


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    b: Builder,
    x: Value,
    weight: Parameter,
    bias: Parameter,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """Batch norm by the batch's statistics."""
    return _batch_norm_train(b, x, weight, bias, eps)[:3]


@decomposition(aten.native_batch_norm.default)
def batch_norm(
    b: Builder, x: Value, weight: Parameter, bias: Parameter, running_mean: Parameter,
    running_var: Parameter, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Batch norm that updates nothing: functionalization chooses the functional form else."""
    if not training:
        assert running_mean is not None and running_var is not None
        return _batch_norm_eval(b, x, weight, bias, running_mean, running_var, eps)
    if running_mean is not None or running_var is not None:
        raise ValueError("aten.native_batch_norm updates its running statistics: not functional")
    return _batch_norm_train(b, x, weight, bias, eps)[:3]


@decomposition(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder, grad: Value, x: Value, weight: Parameter, running_mean: Parameter,
    running_var: Parameter, save_mean: Parameter, save_invstd: Parameter, train: bool, eps: float,
    output_mask: Sequence[bool],
) -> tuple[Parameter, ...]:  # fmt: skip
    """Gradients of x, weight and bias."""
    dims = _batch_dims(x)
    x, grad = b.widen(x), b.widen(grad)
    if train:
        average, rstd = save_mean, save_invstd
    else:
        assert running_var is not None
        average = running_mean
        rstd = _reciprocal_deviation(b, b.cast(running_var, x.spec.dtype), eps)
    assert average is not None and rstd is not None
    rstd = b.cast(rstd, x.spec.dtype)
    xhat = _normalized(b, x, average, rstd, dims)
    # The weight lies along what is kept, so the two sums serve x as well as weight and bias.
    of_weight, of_bias = b.sum(b.mul(grad, xhat), dims), b.sum(grad, dims)
    of_x = grad
    if train:
        n, shape = count(x.spec.shape, dims), x.spec.shape
        along = b.mul(xhat, b.spread(divide(b, of_weight, n), dims, shape))
        of_x = b.sub(b.sub(grad, along), b.spread(divide(b, of_bias, n), dims, shape))
    scale = rstd if weight is None else b.mul(rstd, b.cast(weight, x.spec.dtype))
    of_x = b.mul(of_x, b.spread(scale, dims, x.spec.shape))
    return _masked(output_mask, of_x, of_weight, of_bias)


def _masked(mask: Sequence[bool], *values: Value) -> tuple[Parameter, ...]:
    return tuple(value if wanted else None for wanted, value in zip(mask, values, strict=True))


# Layer and RMS norm


def _inner_dims(x: Value, normalized_shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple(range(x.spec.ndim - len(normalized_shape), x.spec.ndim))


def _outer_sum(b: Builder, x: Value, inner: Sequence[int]) -> Value:
    return b.sum(x, tuple(d for d in range(x.spec.ndim) if d not in inner))


@decomposition(aten.native_layer_norm.default)
def layer_norm(
    b: Builder,
    x: Value,
    normalized_shape: Sequence[Size],
    weight: Parameter,
    bias: Parameter,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalized over the last dims; also mean and reciprocal deviation."""
    dims = _inner_dims(x, normalized_shape)
    wide = b.widen(x)
    spread, average = variance(b, wide, dims, 0)
    rstd = _reciprocal_deviation(b, spread, eps)
    y = _scale_and_shift(b, _normalized(b, wide, average, rstd, dims), weight, bias, dims)
    average = nan_with(b, spread, average)
    return y, b.restore(average, dims), b.restore(rstd, dims)


@decomposition(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: Builder, grad: Value, x: Value, normalized_shape: Sequence[Size], average: Value,
    rstd: Value, weight: Parameter, bias: Parameter, output_mask: Sequence[bool],
) -> tuple[Parameter, ...]:  # fmt: skip
    """Gradients of x, weight and bias."""
    dims = _inner_dims(x, normalized_shape)
    x, grad = b.widen(x), b.widen(grad)
    average, rstd = b.squeeze(average, dims), b.squeeze(rstd, dims)
    xhat = _normalized(b, x, average, rstd, dims)
    of_x = _gradient(b, _weighted(b, grad, weight, dims), xhat, rstd, dims)
    of_weight, of_bias = _outer_sum(b, b.mul(grad, xhat), dims), _outer_sum(b, grad, dims)
    return _masked(output_mask, of_x, of_weight, of_bias)


@decomposition(aten._fused_rms_norm.default)
def rms_norm(
    b: Builder, x: Value, normalized_shape: Sequence[Size], weight: Parameter, eps: float | None
) -> tuple[Value, Value]:
    """x over the root of its mean square; also the reciprocal of that root."""
    dims = _inner_dims(x, normalized_shape)
    wide = b.widen(x)
    if eps is None:
        eps = torch.finfo(wide.spec.dtype).eps
    rstd = b.rsqrt(b.add(mean(b, b.mul(wide, wide), dims), eps))
    y = b.mul(wide, b.spread(rstd, dims, wide.spec.shape))
    return _scale_and_shift(b, y, weight, None, dims), b.restore(rstd, dims)


@decomposition(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    b: Builder, grad: Value, x: Value, normalized_shape: Sequence[Size], rstd: Value,
    weight: Parameter, output_mask: Sequence[bool],
) -> tuple[Parameter, ...]:  # fmt: skip
    """Gradients of x and weight."""
    dims = _inner_dims(x, normalized_shape)
    x, grad = b.widen(x), b.widen(grad)
    rstd = b.squeeze(rstd, dims)
    xhat = b.mul(x, b.spread(b.cast(rstd, x.spec.dtype), dims, x.spec.shape))
    of_x = _gradient(b, _weighted(b, grad, weight, dims), xhat, rstd, dims, centered=False)
    return _masked(output_mask, of_x, _outer_sum(b, b.mul(grad, xhat), dims))


# Group norm


def _grouped(b: Builder, x: Value, group: int) -> Value:
    """(N, C, ...) as (N, group, C / group, ...)."""
    n, channels, *space = x.spec.shape
    return b.reshape(x, (n, group, channels // group, *space))


def _grouped_parameter(b: Builder, x: Parameter, group: int) -> Parameter:
    return None if x is None else b.reshape(x, (group, x.spec.shape[0] // group))


@decomposition(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    x: Value,
    weight: Parameter,
    bias: Parameter,
    n: Size,
    channels: Size,
    space: Size,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalized over a group's channels and places; also mean and rstd, as (N, group)."""
    wide = _grouped(b, b.widen(x), group)
    dims = tuple(range(2, wide.spec.ndim))
    spread, average = variance(b, wide, dims, 0)
    rstd = _reciprocal_deviation(b, spread, eps)
    weight, bias = _grouped_parameter(b, weight, group), _grouped_parameter(b, bias, group)
    y = _scale_and_shift(b, _normalized(b, wide, average, rstd, dims), weight, bias, (1, 2))
    return b.reshape(y, x.spec.shape), nan_with(b, spread, average), rstd


@decomposition(aten.native_group_norm_backward.default)
def group_norm_backward(
    b: Builder, grad: Value, x: Value, average: Value, rstd: Value, weight: Parameter,
    n: Size, channels: Size, space: Size, group: int, output_mask: Sequence[bool],
) -> tuple[Parameter, ...]:  # fmt: skip
    """Gradients of x, weight and bias.

    The two sums over a channel's places serve all three: a weight lies along what is kept, so a
    group's sums are those of its channels, weighted.
    """
    shape = x.spec.shape
    x, grad = _grouped(b, b.widen(x), group), _grouped(b, b.widen(grad), group)
    dims = tuple(range(2, x.spec.ndim))
    xhat = _normalized(b, x, average, rstd, dims)
    weight = _grouped_parameter(b, weight, group)
    along, plain = (_place_sum(b, value) for value in (b.mul(grad, xhat), grad))
    of_group, of_all = (
        divide(b, b.sum(_weighted(b, value, weight, (1, 2)), (2,)), count(x.spec.shape, dims))
        for value in (along, plain)
    )
    inner = b.sub(
        _weighted(b, grad, weight, (1, 2)), b.mul(xhat, b.spread(of_group, dims, x.spec.shape))
    )
    inner = b.sub(inner, b.spread(of_all, dims, x.spec.shape))
    of_x = b.mul(inner, b.spread(b.cast(rstd, x.spec.dtype), dims, x.spec.shape))
    of_weight, of_bias = (b.reshape(b.sum(value, (0,)), (channels,)) for value in (along, plain))
    return _masked(output_mask, b.reshape(of_x, shape), of_weight, of_bias)


def _place_sum(b: Builder, x: Value) -> Value:
    """The sum over all dims behind (N, group, C / group)."""
    places = tuple(range(3, x.spec.ndim))
    return b.sum(x, places) if places else x


# Weight norm


@decomposition(aten._weight_norm_interface.default)
def weight_norm(b: Builder, v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    """v * g / norm(v), the norm over all dims but one; also the norm."""
    dims = tuple(d for d in range(v.spec.ndim) if d != dim)
    v, g = b.widen(v), b.squeeze(b.widen(g), dims)
    norm = b.sqrt(b.sum(b.mul(v, v), dims))
    return b.mul(v, b.spread(b.div(g, norm), dims, v.spec.shape)), b.restore(norm, dims)


@decomposition(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    b: Builder, grad: Value, v: Value, g: Value, norm: Value, dim: int
) -> tuple[Value, Value]:
    """Gradients of v and g."""
    dims = tuple(d for d in range(v.spec.ndim) if d != dim)
    grad, v = b.widen(grad), b.widen(v)
    g, norm = (b.squeeze(b.cast(item, v.spec.dtype), dims) for item in (g, norm))
    projection = b.sum(b.mul(grad, v), dims)
    along = b.mul(v, b.spread(b.div(projection, b.mul(norm, norm)), dims, v.spec.shape))
    of_v = b.mul(b.sub(grad, along), b.spread(b.div(g, norm), dims, v.spec.shape))
    return of_v, b.restore(b.div(projection, norm), dims)
