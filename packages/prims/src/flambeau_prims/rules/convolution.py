"""Shape rules of convolutions, forward and backward.

The layout of the result follows the kernel that eager PyTorch picks: nearly all work in
channels_last when the input or the weight is, some (native 3d ones on CPU, double precision on a
GPU) row-major.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.promotion import dtype_name
from flambeau_prims.rules.registry import rule
from flambeau_prims.rules.view import unsqueeze
from flambeau_prims.sizes import eq, gt, le
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_contiguous, product, stride_for, suggested_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


def spread(values: Sizes, ndim: int, name: str) -> tuple[Size, ...]:
    """One value a spatial dimension; a single one serves all."""
    if len(values) == ndim:
        return tuple(values)
    if len(values) == 1:
        return tuple(values) * ndim
    raise RuntimeError(
        f"expected {name} to be a single integer value or a list of {ndim} values to match the "
        f"convolution dimensions, but got {name}={list(values)}"
    )


def convolved_size(size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size) -> Size:
    """The extent of one spatial dimension after a convolution."""
    reach = dilation * (kernel - 1) + 1
    padded = size + 2 * padding
    if gt(reach, padded):
        raise RuntimeError(
            f"Calculated padded input size: ({padded}). Kernel size: ({reach}). Kernel "
            f"size can't be greater than actual input size"
        )
    return (padded - reach) // stride + 1


def transposed_size(
    size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size, output_padding: Size
) -> Size:
    """The extent of one spatial dimension after a transposed convolution."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1


@rule(aten.convolution.default)
def convolution(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Spec:
    """[n, c, *spatial] with [out, c / groups, *kernel] -> [n, out, *spatial']; images without
    channels stay so.
    """
    spatial = weight.ndim - 2
    if spatial <= 0 or input.ndim != weight.ndim:
        raise RuntimeError(
            f"Expected {weight.ndim}D (batched) input to the convolution, but got input of "
            f"size: {list(input.shape)}"
        )
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"Input type ({dtype_name(input.dtype)}) and weight type "
            f"({dtype_name(weight.dtype)}) should be the same"
        )
    if bias is not None and bias.dtype != input.dtype:
        raise RuntimeError(
            f"Input type ({dtype_name(input.dtype)}) and bias type "
            f"({dtype_name(bias.dtype)}) should be the same"
        )
    strides = spread(stride, spatial, "stride")
    paddings = spread(padding, spatial, "padding")
    dilations = spread(dilation, spatial, "dilation")
    if any(le(step, 0) for step in strides):
        raise RuntimeError("non-positive stride is not supported")
    if gt(groups, weight.shape[0]):
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, "
            f"but got weight of size {list(weight.shape)} instead"
        )
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if not eq(input.shape[1], channels):
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected "
            f"input{list(input.shape)} to have "
            f"{channels} channels, but got {input.shape[1]} channels instead"
        )
    out_channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and (bias.ndim != 1 or not eq(bias.shape[0], out_channels)):
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with "
            f"{out_channels} elements, but got bias of size {list(bias.shape)} instead"
        )
    sizes = [input.shape[2:], weight.shape[2:], strides, paddings, dilations]
    if transposed:
        sizes.append(spread(output_padding, spatial, "output_padding"))
    if any(eq(size, 0) for size in input.shape[2:]):
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: "
            f"{list(input.shape)}"
        )
    size_of = transposed_size if transposed else convolved_size
    if eq(input.shape[1], 0):
        out_channels = 0
    shape = (input.shape[0], out_channels, *(size_of(*each) for each in zip(*sizes, strict=True)))
    return input.fresh(shape, convolved_stride(shape, input, weight, groups))


def convolved_stride(
    of: tuple[Size, ...], input: Spec, weight: Spec, groups: int
) -> tuple[Size, ...]:
    """Strides of a result of shape `of`; 1d runs as 2d of height 1, on a packed input."""
    if input.ndim != 3:
        return stride_for(of, convolution_format(input, weight, groups))
    if not is_contiguous(input):
        input = input.replace(shape=input.shape)
    wanted = convolution_format(unsqueeze(input, 2), unsqueeze(weight, 2), groups)
    stride = stride_for((*of[:2], 1, of[2]), wanted)
    return (*stride[:2], stride[3])


def convolution_format(input: Spec, weight: Spec, groups: int) -> torch.memory_format:
    """The memory format in which eager computes a 2d or 3d convolution."""
    wanted = suggested_format(input)
    if wanted == torch.contiguous_format:
        wanted = suggested_format(weight)
    if wanted == torch.contiguous_format:
        return wanted
    if input.device.type != "cpu":
        return torch.contiguous_format if input.dtype == torch.float64 else wanted
    if input.ndim == 5 and not _onednn_takes(input, weight, groups):
        return torch.contiguous_format
    return wanted


def _onednn_takes(input: Spec, weight: Spec, groups: int) -> bool:
    """Whether eager gives a 3d convolution to oneDNN; its native kernels are row-major."""
    if input.dtype != torch.float32:
        return input.dtype != torch.float64
    wide = gt(weight.shape[-1], 3) and gt(weight.shape[-2], 3)
    return groups > 1 or wide or gt(input.shape[0], 1) or gt(product(input.shape[:4]), 20480)


@rule(aten.convolution_backward.default)
def convolution_backward(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    transposed: bool,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Spec | None, Spec | None, Spec | None]:
    """Gradients of input, weight and bias, each where its mask asks for it."""

    def gradient(of: Spec) -> Spec:
        return of.fresh(stride=convolved_stride(of.shape, input, weight, groups))

    bias = grad_output.fresh((weight.shape[1] * groups if transposed else weight.shape[0],))
    return (
        gradient(input) if output_mask[0] else None,
        gradient(weight) if output_mask[1] else None,
        bias if output_mask[2] else None,
    )
