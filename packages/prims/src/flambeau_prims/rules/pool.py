"""Shape rules of pooling, windows and resampling: max/avg/adaptive pools, im2col, upsample, grid_sampler, pads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ge, le
from flambeau_prims.spec import Spec
from flambeau_prims.strides import stride_for, suggested_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


def spread(values: Sequence[Size], ndim: int, default: Sequence[Size] = ()) -> tuple[Size, ...]:
    """One value a spatial dimension; a single one serves all, none means the default."""
    values = tuple(values) or tuple(default)
    return values * ndim if len(values) == 1 else values


def pooled_size(
    size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool
) -> Size:
    """The extent of one spatial dimension after pooling."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if ceil_mode:
        length = (span + stride - 1) // stride + 1
        # The last window must start inside the input or its left padding.
        if ge((length - 1) * stride, size + padding):
            length = length - 1
    else:
        length = span // stride + 1
    if le(length, 0):
        raise RuntimeError(
            f"Given input size {size}, kernel {kernel}, stride {stride}, padding {padding}: output size {length} is too small"
        )
    return length


def _windowed_shape(
    self: Spec,
    spatial: int,
    kernel_size: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[Size],
    ceil_mode: bool,
) -> tuple[Size, ...]:
    if self.ndim not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"Expected {spatial + 1}D or {spatial + 2}D (batch mode) tensor for pooling, got {list(self.shape)}"
        )
    kernel = spread(kernel_size, spatial)
    steps = spread(stride, spatial, kernel)
    pads = spread(padding, spatial)
    dilations = spread(dilation, spatial)
    for pad, extent in zip(pads, kernel, strict=True):
        if not le(pad * 2, extent):
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={pad}, kernel_size={extent}"
            )
    tail = [
        pooled_size(*sizes, ceil_mode)
        for sizes in zip(self.shape[-spatial:], kernel, steps, pads, dilations, strict=True)
    ]
    return (*self.shape[:-spatial], *tail)


def _formatted(self: Spec, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> Spec:
    """A new tensor of this shape in self's suggested memory format."""
    return Spec.of(
        shape,
        stride=stride_for(shape, suggested_format(self)),
        dtype=dtype or self.dtype,
        device=self.device,
    )


# 1. Max pools


@rule(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    self: Spec,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    dilation: Sequence[Size] = (1,),
    ceil_mode: bool = False,
) -> tuple[Spec, Spec]:
    """Values, and flat positions in each plane."""
    shape = _windowed_shape(self, 2, kernel_size, stride, padding, dilation, ceil_mode)
    return _formatted(self, shape), _formatted(self, shape, torch.int64)


@rule(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    grad_output: Spec,
    self: Spec,
    kernel_size: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[Size],
    ceil_mode: bool,
    indices: Spec,
) -> Spec:
    """Self's shape."""
    return _formatted(self, self.shape)


# 2. Upsampling


def _upsampled(self: Spec, output_size: Sequence[Size]) -> tuple[Size, ...]:
    if self.ndim != len(output_size) + 2:
        raise RuntimeError(
            f"It is expected output_size equals to {self.ndim - 2}, but got size {len(output_size)}"
        )
    return (*self.shape[:2], *output_size)


@rule(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    self: Spec,
    output_size: Sequence[Size],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Spec:
    """In self's memory format."""
    return _formatted(self, _upsampled(self, output_size))


@rule(aten.upsample_nearest2d_backward.default)
def upsample_nearest2d_backward(
    grad_output: Spec,
    output_size: Sequence[Size],
    input_size: Sequence[Size],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Spec:
    """In the gradient's memory format."""
    return _formatted(grad_output, tuple(input_size))
