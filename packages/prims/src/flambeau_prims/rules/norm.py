"""Shape rules of batch, layer, group and RMS normalisation, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.torch_version import TorchVersion

from flambeau_prims.rules.pointwise import refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq
from flambeau_prims.spec import Spec, contiguous_stride
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

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten

Parameter: TypeAlias = "Spec | None"

_REDUCED_PRECISION = (torch.bfloat16, torch.float16)


def _parameter_dtype(input: Spec, *parameters: Parameter) -> torch.dtype:
    """The dtype of statistics: float32 when reduced-precision input meets float32 parameters."""
    mixed = input.dtype in _REDUCED_PRECISION and any(
        parameter is not None and parameter.dtype == torch.float32 for parameter in parameters
    )
    return torch.float32 if mixed else input.dtype


def _statistics_dtype(input: Spec, *parameters: Parameter) -> torch.dtype:
    """As `_parameter_dtype` on CPU; GPUs keep statistics of reduced precision in float32."""
    if input.device.type != "cpu" and input.dtype in _REDUCED_PRECISION:
        return torch.float32
    return _parameter_dtype(input, *parameters)


def _masked(mask: Sequence[bool], *gradients: Parameter) -> tuple[Parameter, ...]:
    """The gradients that the mask asks for, and None for the others."""
    return tuple(spec if wanted else None for wanted, spec in zip(mask, gradients, strict=True))


# 1. Batch norm


def _check_batch_norm(input: Spec, *parameters: Parameter) -> Size:
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
    input: Spec, weight: Parameter, bias: Parameter, running_mean: Parameter,
    running_var: Parameter, training: bool,
) -> tuple[Spec, Spec, Spec]:  # fmt: skip
    """The result, and the batch's mean and inverse deviation (empty in evaluation on CPU)."""
    channels = _check_batch_norm(input, weight, bias, running_mean, running_var)
    dtype = _statistics_dtype(input, weight, bias, running_mean, running_var)
    if input.device.type != "cpu":
        saved = input.fresh((channels,), dtype=dtype)
        return input.fresh(stride=preserved_stride(input)), saved, saved
    saved = input.fresh((channels if training else 0,), dtype=dtype)
    # One channel, or one pixel: contiguous and channels-last at once.
    stride = contiguous_stride(input.shape) if is_contiguous(input) else _batch_norm_stride(input)
    return input.fresh(stride=stride), saved, saved


def _batch_norm_stride(input: Spec) -> tuple[Size, ...]:
    if not is_contiguous(input) and is_channels_last(input):
        return channels_last_stride(input.shape)
    return suggested_stride(input)


@rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    input: Spec, weight: Parameter, bias: Parameter, training: bool
) -> tuple[Spec, Spec, Spec]:
    """As native_batch_norm without running statistics."""
    return native_batch_norm(input, weight, bias, None, None, training)


@rule(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    input: Spec, weight: Parameter, bias: Parameter, running_mean: Spec, running_var: Spec,
    training: bool,
) -> tuple[Spec, ...]:  # fmt: skip
    """As native_batch_norm; the new running statistics are results four and five."""
    results = native_batch_norm(input, weight, bias, running_mean, running_var, training)
    return (*results, running_mean.fresh(), running_var.fresh())


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    input: Spec, weight: Parameter, bias: Parameter, running_mean: Spec, running_var: Spec
) -> tuple[Spec, Spec, Spec]:
    """native_batch_norm in evaluation."""
    return native_batch_norm(input, weight, bias, running_mean, running_var, False)


@rule(aten._batch_norm_with_update.default)
def batch_norm_with_update(
    input: Spec, weight: Parameter, bias: Parameter, running_mean: Spec, running_var: Spec
) -> tuple[Spec, ...]:
    """Training batch norm with a reserve for the kernel's own use."""
    results = native_batch_norm(input, weight, bias, running_mean, running_var, True)
    return (*results, input.fresh((0,), dtype=torch.uint8))


@rule(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update_functional(
    input: Spec, weight: Parameter, bias: Parameter, running_mean: Spec, running_var: Spec
) -> tuple[Spec, ...]:
    """As `batch_norm_with_update`; the new running statistics are results five and six."""
    results = batch_norm_with_update(input, weight, bias, running_mean, running_var)
    return (*results, running_mean.fresh(), running_var.fresh())


@rule(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(
    input: Spec, weight: Spec, bias: Parameter, running_mean: Parameter, running_var: Parameter,
    training: bool,
) -> tuple[Spec, Spec, Spec, Spec]:  # fmt: skip
    """The result, saved statistics (empty in evaluation), and cuDNN's reserve, of unknown size."""
    channels = _check_batch_norm(input, weight, bias, running_mean, running_var)
    saved = input.fresh((channels if training else 0,), dtype=weight.dtype)
    reserve = input.fresh((0,), dtype=torch.uint8)
    return input.fresh(stride=suggested_stride(input)), saved, saved, reserve


@rule(aten.native_batch_norm_backward.default, aten.batch_norm_backward.default)
def native_batch_norm_backward(
    input: Spec, weight: Parameter, output_mask: Sequence[bool]
) -> tuple[Parameter, ...]:
    """Gradients of input, weight and bias."""
    dtype = _parameter_dtype(input, weight) if weight is None else weight.dtype
    parameter = input.fresh((input.shape[1],), dtype=dtype)
    gradient = input.fresh(stride=_batch_norm_stride(input))
    return _masked(output_mask, gradient, parameter, parameter)


@rule(aten.cudnn_batch_norm_backward.default)
def cudnn_batch_norm_backward(input: Spec, weight: Spec) -> tuple[Spec, Spec, Spec]:
    """Gradients of input, weight and bias."""
    parameter = input.fresh((input.shape[1],), dtype=weight.dtype)
    return input.fresh(stride=suggested_stride(input)), parameter, parameter


# 2. Layer norm


def _check_normalized_shape(input: Spec, normalized_shape: Sizes, *parameters: Parameter) -> int:
    if not normalized_shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )
    normalized = tuple(normalized_shape)
    outer = input.ndim - len(normalized)
    if outer < 0 or not same_shape(input.shape[outer:], normalized):
        raise RuntimeError(
            f"Given normalized_shape={list(normalized)}, expected input with shape [*, "
            f"{str(list(normalized))[1:-1]}], but got input of size{list(input.shape)}"
        )
    for name, parameter in zip(("weight", "bias"), parameters, strict=False):
        if parameter is not None and not same_shape(parameter.shape, normalized):
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {list(normalized)}"
            )
    return outer


@rule(aten.native_layer_norm.default)
def native_layer_norm(
    input: Spec, normalized_shape: Sizes, weight: Parameter, bias: Parameter
) -> tuple[Spec, Spec, Spec]:
    """The result, and the mean and inverse deviation of each row (normalised dims of size 1)."""
    refuse("LayerNormKernelImpl", input.dtype, input.device, "bi")
    outer = _check_normalized_shape(input, normalized_shape, weight, bias)
    shape = input.shape[:outer] + (1,) * len(normalized_shape)
    row = input.fresh(shape, dtype=_statistics_dtype(input, weight, bias))
    return input.fresh(), row, row


@rule(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    input: Spec,
    normalized_shape: Sizes,
    weight: Parameter,
    bias: Parameter,
    output_mask: Sequence[bool],
) -> tuple[Parameter, ...]:
    """Gradients of input, weight and bias."""
    _check_normalized_shape(input, normalized_shape, weight, bias)
    dtype = input.dtype if weight is None else weight.dtype
    parameter = input.fresh(tuple(normalized_shape), dtype=dtype)
    of_weight, of_bias = (None if each is None else parameter for each in (weight, bias))
    return _masked(output_mask, input.fresh(), of_weight, of_bias)


@rule(aten._fused_rms_norm.default)
def fused_rms_norm(input: Spec, normalized_shape: Sizes, weight: Parameter) -> tuple[Spec, Spec]:
    """The result, and the inverse root mean square of each row."""
    outer = _check_normalized_shape(input, normalized_shape, weight)
    shape = input.shape[:outer] + (1,) * len(normalized_shape)
    dtype = torch.float32 if input.dtype in _REDUCED_PRECISION else input.dtype
    row = input.fresh(shape, dtype=dtype)
    return input.fresh(stride=suggested_stride(input) if input.device.type == "cpu" else None), row


@rule(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    input: Spec, normalized_shape: Sizes, weight: Parameter, output_mask: Sequence[bool]
) -> tuple[Parameter, ...]:
    """Gradients of input and weight."""
    _check_normalized_shape(input, normalized_shape, weight)
    return _masked(output_mask, input.fresh(), weight and weight.fresh())


# 3. Group norm

_COPIES_STRIDED_GROUPS = TorchVersion(torch.__version__) >= "2.14"
"""Whether the operator accepts every layout; before, F.group_norm copied what is not contiguous."""


def _group_norm_stride(input: Spec) -> tuple[Size, ...]:
    wanted = suggested_format(input) if input.device.type == "cpu" else torch.contiguous_format
    return stride_for(input.shape, wanted)


@rule(aten.native_group_norm.default)
def native_group_norm(
    input: Spec, weight: Parameter, bias: Parameter, N: Size, C: Size, HxW: Size, group: int
) -> tuple[Spec, Spec, Spec]:
    """The result, and mean and inverse deviation of each group."""
    refuse("GroupNormKernelImpl", input.dtype, input.device, "bi")
    stride = _group_norm_stride(input)
    channels_last = stride != contiguous_stride(input.shape)
    in_order = is_channels_last(input) if channels_last else is_contiguous(input)
    if not (in_order or _COPIES_STRIDED_GROUPS):
        raise RuntimeError("Expected X.is_contiguous(memory_format) to be true, but got false.")
    if not eq(C % group, 0):
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={group}"
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
    row = input.fresh((N, group), dtype=_parameter_dtype(input, weight, bias))
    return input.fresh(stride=stride), row, row


@rule(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    input: Spec, weight: Parameter, C: Size, output_mask: Sequence[bool]
) -> tuple[Parameter, ...]:
    """Gradients of input, weight and bias."""
    parameter = input.fresh((C,), dtype=input.dtype if weight is None else weight.dtype)
    gradient = input.fresh(stride=_group_norm_stride(input))
    return _masked(output_mask, gradient, parameter, parameter)


@rule(aten.renorm.default)
def renorm(self: Spec, dim: int) -> Spec:
    """Row-major."""
    wrap_dim(dim, self.ndim)
    if self.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {self.ndim} dimensions")
    return self.fresh()
