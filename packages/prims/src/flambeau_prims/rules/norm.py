"""Shape rules of batch, layer, group and RMS normalisation, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import (
    channels_last_stride,
    is_channels_last,
    is_contiguous,
    preserved_stride,
    product,
    same_shape,
    stride_for,
    suggested_format,
    suggested_stride,
    wrap_dim,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.promotion import Number
    from flambeau_prims.spec import Size

aten = torch.ops.aten

_REDUCED_PRECISION = (torch.bfloat16, torch.float16)


def _parameter_dtype(input: Spec, *parameters: Spec | None) -> torch.dtype:
    """The dtype of statistics: float32 when reduced-precision input meets float32 parameters."""
    mixed = input.dtype in _REDUCED_PRECISION and any(
        parameter is not None and parameter.dtype == torch.float32 for parameter in parameters
    )
    return torch.float32 if mixed else input.dtype


def _statistics_dtype(input: Spec, *parameters: Spec | None) -> torch.dtype:
    """As `_parameter_dtype` on CPU; GPUs keep statistics of reduced precision in float32."""
    if input.device.type != "cpu" and input.dtype in _REDUCED_PRECISION:
        return torch.float32
    return _parameter_dtype(input, *parameters)


def _like(
    input: Spec, stride: Sequence[Size] | None = None, dtype: torch.dtype | None = None
) -> Spec:
    return Spec.of(input.shape, stride=stride, dtype=dtype or input.dtype, device=input.device)


def _vector(input: Spec, length: Size, dtype: torch.dtype) -> Spec:
    return Spec.of((length,), dtype=dtype, device=input.device)


def _optional(wanted: bool, spec: Spec) -> Spec | None:
    return spec if wanted else None


# 1. Batch norm


def _check_batch_norm(input: Spec, *parameters: Spec | None) -> Size:
    if input.ndim < 2:
        raise RuntimeError(
            f"Expected tensor for argument #1 'input' to have at least 2 dimensions, got "
            f"{list(input.shape)}"
        )
    channels = input.shape[1]
    names = ("weight", "bias", "running_mean", "running_var")
    for name, parameter in zip(names, parameters, strict=False):
        if parameter is not None and not same_shape(parameter.shape, (channels,)):
            raise RuntimeError(
                f"{name} should contain {channels} elements not {list(parameter.shape)}"
            )
    return channels


@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def native_batch_norm(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    """The result, and the batch's mean and inverse deviation (empty in evaluation on CPU)."""
    channels = _check_batch_norm(input, weight, bias, running_mean, running_var)
    dtype = _statistics_dtype(input, weight, bias, running_mean, running_var)
    if input.device.type != "cpu":
        saved = _vector(input, channels, dtype)
        return _like(input, preserved_stride(input)), saved, saved
    saved = _vector(input, channels if training else 0, dtype)
    return _like(input, _batch_norm_stride(input)), saved, saved


def _batch_norm_stride(input: Spec) -> tuple[Size, ...]:
    if not is_contiguous(input) and is_channels_last(input):
        return channels_last_stride(input.shape)
    return suggested_stride(input)


@rule(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_without_statistics(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    """As native_batch_norm without running statistics."""
    return native_batch_norm(input, weight, bias, None, None, training, momentum, eps)


@rule(aten._native_batch_norm_legit_functional.default)
def native_batch_norm_functional(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec,
    running_var: Spec,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec, Spec, Spec]:
    """As native_batch_norm; the new running statistics are results four and five."""
    results = native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return (*results, _like(running_mean), _like(running_var))


@rule(aten._native_batch_norm_legit_no_training.default)
def native_batch_norm_no_training(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec,
    running_var: Spec,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    """native_batch_norm in evaluation."""
    return native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


@rule(aten._batch_norm_with_update.default)
def batch_norm_with_update(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec,
    running_var: Spec,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec, Spec]:
    """Training batch norm with a reserve for the kernel's own use."""
    results = native_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*results, _vector(input, 0, torch.uint8))


@rule(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update_functional(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec,
    running_var: Spec,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec, Spec, Spec, Spec]:
    """As `batch_norm_with_update`; the new running statistics are results five and six."""
    results = batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps)
    return (*results, _like(running_mean), _like(running_var))


@rule(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[Spec, Spec, Spec, Spec]:
    """The result, saved statistics (empty in evaluation), and cuDNN's reserve, whose size only
    cuDNN knows.
    """
    channels = _check_batch_norm(input, weight, bias, running_mean, running_var)
    saved = _vector(input, channels if training else 0, weight.dtype)
    return _like(input, suggested_stride(input)), saved, saved, _vector(input, 0, torch.uint8)


@rule(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out: Spec,
    input: Spec,
    weight: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    save_mean: Spec | None,
    save_invstd: Spec | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Spec | None, Spec | None, Spec | None]:
    """Gradients of input, weight and bias."""
    dtype = _parameter_dtype(input, weight) if weight is None else weight.dtype
    parameter = _vector(input, input.shape[1], dtype)
    return (
        _optional(output_mask[0], _like(input, _batch_norm_stride(input))),
        _optional(output_mask[1], parameter),
        _optional(output_mask[2], parameter),
    )


@rule(aten.cudnn_batch_norm_backward.default)
def cudnn_batch_norm_backward(
    input: Spec,
    grad_output: Spec,
    weight: Spec,
    running_mean: Spec | None,
    running_var: Spec | None,
    save_mean: Spec | None,
    save_var: Spec | None,
    epsilon: float,
    reserveSpace: Spec,
) -> tuple[Spec, Spec, Spec]:
    """Gradients of input, weight and bias."""
    parameter = _vector(input, input.shape[1], weight.dtype)
    return _like(input, suggested_stride(input)), parameter, parameter


# 2. Layer norm


def _check_normalized_shape(
    input: Spec, normalized_shape: Sequence[Size], *parameters: Spec | None
) -> int:
    if not normalized_shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at "
            "least one element, but got "
            "normalized_shape = []"
        )
    normalized = tuple(normalized_shape)
    outer = input.ndim - len(normalized)
    if outer < 0 or not same_shape(input.shape[outer:], normalized):
        raise RuntimeError(
            f"Given normalized_shape={list(normalized)}, expected input with shape [*, "
            f"{str(list(normalized))[1:-1]}], "
            f"but got input of size{list(input.shape)}"
        )
    for name, parameter in zip(("weight", "bias"), parameters, strict=False):
        if parameter is not None and not same_shape(parameter.shape, normalized):
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} "
                f"of shape {list(parameter.shape)} and "
                f"normalized_shape = {list(normalized)}"
            )
    return outer


@rule(aten.native_layer_norm.default)
def native_layer_norm(
    input: Spec,
    normalized_shape: Sequence[Size],
    weight: Spec | None,
    bias: Spec | None,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    """The result, and mean and inverse deviation of each row, their normalised dimensions of size
    1.
    """
    outer = _check_normalized_shape(input, normalized_shape, weight, bias)
    shape = input.shape[:outer] + (1,) * len(normalized_shape)
    row = Spec.of(shape, dtype=_statistics_dtype(input, weight, bias), device=input.device)
    return _like(input), row, row


@rule(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out: Spec,
    input: Spec,
    normalized_shape: Sequence[Size],
    mean: Spec,
    rstd: Spec,
    weight: Spec | None,
    bias: Spec | None,
    output_mask: Sequence[bool],
) -> tuple[Spec | None, Spec | None, Spec | None]:
    """Gradients of input, weight and bias."""
    _check_normalized_shape(input, normalized_shape, weight, bias)
    dtype = input.dtype if weight is None else weight.dtype
    parameter = Spec.of(tuple(normalized_shape), dtype=dtype, device=input.device)
    return (
        _optional(output_mask[0], _like(input)),
        _optional(output_mask[1] and weight is not None, parameter),
        _optional(output_mask[2] and bias is not None, parameter),
    )


@rule(aten._fused_rms_norm.default)
def fused_rms_norm(
    input: Spec, normalized_shape: Sequence[Size], weight: Spec | None, eps: float | None
) -> tuple[Spec, Spec]:
    """The result, and the inverse root mean square of each row."""
    outer = _check_normalized_shape(input, normalized_shape, weight)
    shape = input.shape[:outer] + (1,) * len(normalized_shape)
    dtype = torch.float32 if input.dtype in _REDUCED_PRECISION else input.dtype
    row = Spec.of(shape, dtype=dtype, device=input.device)
    return _like(input, suggested_stride(input) if input.device.type == "cpu" else None), row


@rule(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad_out: Spec,
    input: Spec,
    normalized_shape: Sequence[Size],
    rstd: Spec,
    weight: Spec | None,
    output_mask: Sequence[bool],
) -> tuple[Spec | None, Spec | None]:
    """Gradients of input and weight."""
    _check_normalized_shape(input, normalized_shape, weight)
    return (
        _optional(output_mask[0], _like(input)),
        _like(weight) if output_mask[1] and weight is not None else None,
    )


# 3. Group norm


def _group_norm_stride(input: Spec) -> tuple[Size, ...]:
    wanted = suggested_format(input) if input.device.type == "cpu" else torch.contiguous_format
    return stride_for(input.shape, wanted)


@rule(aten.native_group_norm.default)
def native_group_norm(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    """The result, and mean and inverse deviation of each group."""
    if not eq(C % group, 0):
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got "
            f"input of shape "
            f"{list(input.shape)} and num_groups={group}"
        )
    if not eq(product((N, C, HxW)), input.numel):
        raise RuntimeError("group norm: N * C * HxW is not the number of elements of the input")
    for parameter in (weight, bias):
        if parameter is not None and not same_shape(parameter.shape, (C,)):
            raise RuntimeError(
                f"Expected weight to be a vector of size equal to the number of channels "
                f"in input, but got weight of shape "
                f"{list(parameter.shape)} and input of shape {list(input.shape)}"
            )
    row = Spec.of((N, group), dtype=_parameter_dtype(input, weight, bias), device=input.device)
    return _like(input, _group_norm_stride(input)), row, row


@rule(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out: Spec,
    input: Spec,
    mean: Spec,
    rstd: Spec,
    weight: Spec | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Spec | None, Spec | None, Spec | None]:
    """Gradients of input, weight and bias."""
    parameter = _vector(input, C, input.dtype if weight is None else weight.dtype)
    return (
        _optional(output_mask[0], _like(input, _group_norm_stride(input))),
        _optional(output_mask[1], parameter),
        _optional(output_mask[2], parameter),
    )


@rule(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad_out: Spec,
    input: Spec,
    weight: Spec,
    running_mean: Spec | None,
    running_var: Spec | None,
    save_mean: Spec | None,
    save_var: Spec | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Spec,
) -> tuple[Spec | None, Spec | None, Spec | None]:
    """Gradients of input, weight and bias; `reserve` is what a GPU's library kept for this."""
    return native_batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )


@rule(aten.renorm.default)
def renorm(self: Spec, p: Number, dim: int, maxnorm: Number) -> Spec:
    """Row-major."""
    wrap_dim(dim, self.ndim)
    if self.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {self.ndim} dimensions")
    return Spec.of(self.shape, dtype=self.dtype, device=self.device)
