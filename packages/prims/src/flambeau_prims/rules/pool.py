"""Shape rules of pooling: max, average, adaptive, and their backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name, is_integral
from flambeau_prims.rules.pointwise import not_implemented, refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ceil_div, eq, ge, le, lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, same_shape, stride_for, suggested_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


def formatted(self: Spec, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> Spec:
    """A new tensor of this shape in self's suggested memory format."""
    return Spec.of(
        shape,
        stride=stride_for(shape, suggested_format(self)),
        dtype=dtype or self.dtype,
        device=self.device,
    )


def packed(self: Spec, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> Spec:
    """A new row-major tensor with self's dtype and device."""
    return Spec.of(shape, dtype=dtype or self.dtype, device=self.device)


# 1. Windows


def spread(values: Sequence[Size], ndim: int, default: Sequence[Size] = ()) -> tuple[Size, ...]:
    """One value a spatial dimension; a single one serves all, none means the default."""
    values = tuple(values) or tuple(default)
    if len(values) not in (1, ndim):
        raise RuntimeError(f"pooling: expected one or {ndim} values, but got {list(values)}")
    return values * ndim if len(values) == 1 else values


def pooled_size(
    size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool
) -> Size:
    """The extent of one spatial dimension after pooling."""
    if eq(stride, 0):
        raise RuntimeError("stride should not be zero")
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if ceil_mode:
        length = ceil_div(span, stride) + 1
        # The last window must start inside the input or its left padding.
        if ge((length - 1) * stride, size + padding):
            length = length - 1
    else:
        length = span // stride + 1
    if le(length, 0):
        raise RuntimeError(
            f"Given input size {size}, kernel {kernel}, stride {stride}, padding "
            f"{padding}: output size {length} is too small"
        )
    return length


def _check_spatial(self: Spec, spatial: int) -> None:
    if self.ndim not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"non-empty {spatial + 1}D or {spatial + 2}D (batch mode) tensor expected for input"
        )


def _check_lengths(self: Spec, spatial: int, kernel: str) -> None:
    """No dimension but the batch may be empty (ATen/native/Pool.h)."""
    batched = self.ndim == spatial + 2
    for dim in range(int(batched), self.ndim):
        if eq(self.shape[dim], 0) and spatial == 2:
            raise RuntimeError(
                "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, "
                f"but got:{list(self.shape)}"
            )
        if eq(self.shape[dim], 0):
            raise RuntimeError(
                f"{kernel}(): Expected input's non-batch dimensions to have positive "
                f"length, but input has a shape of "
                f"{list(self.shape)} and non-batch dimension {self.shape[dim]} has length zero!"
            )


def windowed_shape(
    self: Spec,
    spatial: int,
    kernel_size: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[Size],
    ceil_mode: bool,
    name: str,
) -> tuple[Size, ...]:
    """Self's shape with its last `spatial` dimensions pooled; errors speak of `name`."""
    _check_spatial(self, spatial)
    kernel = spread(kernel_size, spatial)
    steps = spread(stride, spatial, kernel)
    pads = spread(padding, spatial)
    dilations = spread(dilation, spatial)
    for pad, extent in zip(pads, kernel, strict=True):
        if lt(pad, 0):
            raise RuntimeError(f"pad must be non-negative, but got pad: {pad}")
        if not le(pad * 2, extent):
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={pad}, "
                f"kernel_size={extent}"
            )
    _check_lengths(self, spatial, name)
    tail = [
        pooled_size(*sizes, ceil_mode)
        for sizes in zip(self.shape[-spatial:], kernel, steps, pads, dilations, strict=True)
    ]
    return (*self.shape[:-spatial], *tail)


# 2. Max pools


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
    shape = windowed_shape(self, 2, kernel_size, stride, padding, dilation, ceil_mode, "max_pool2d")
    return formatted(self, shape), formatted(self, shape, torch.int64)


@rule(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    grad_output: Spec, self: Spec, *_window: Any, **_named: Any
) -> Spec:
    """Self's shape and memory format."""
    return formatted(self, self.shape)


@rule(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    self: Spec,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    dilation: Sequence[Size] = (1,),
    ceil_mode: bool = False,
) -> tuple[Spec, Spec]:
    """Values, and flat positions in each volume."""
    _check_volume_format(self)
    name = "max_pool3d_with_indices_out_cpu_template"
    shape = windowed_shape(self, 3, kernel_size, stride, padding, dilation, ceil_mode, name)
    return formatted(self, shape), formatted(self, shape, torch.int64)


@rule(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_with_indices_backward(
    grad_output: Spec, self: Spec, *_window: Any, **_named: Any
) -> Spec:
    """Self's shape and memory format."""
    _check_volume_format(self)
    _check_volume_format(grad_output)
    return formatted(self, self.shape)


def _check_volume_format(self: Spec) -> None:
    if self.ndim == 4 and suggested_format(self) != torch.contiguous_format:
        raise RuntimeError("Unsupported memory format. Supports only ChannelsLast3d, Contiguous")


# 3. Average pools


def _average_pool(
    self: Spec,
    spatial: int,
    kernel_size: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
    ceil_mode: bool,
    divisor_override: int | None,
) -> tuple[Size, ...]:
    if divisor_override == 0:
        raise RuntimeError("divisor must be not zero")
    if is_integral(self.dtype) and self.dtype != torch.int64:
        raise not_implemented(f"avg_pool{spatial}d", self.dtype)
    name = f"avg_pool{spatial}d"
    return windowed_shape(self, spatial, kernel_size, stride, padding, (1,), ceil_mode, name)


@rule(aten.avg_pool2d.default)
def avg_pool2d(
    self: Spec,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Spec:
    """Means of windows."""
    shape = _average_pool(self, 2, kernel_size, stride, padding, ceil_mode, divisor_override)
    return formatted(self, shape)


@rule(aten.avg_pool3d.default)
def avg_pool3d(
    self: Spec,
    kernel_size: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Spec:
    """Means of windows."""
    refuse("avg_pool3d_out_frame", self.dtype, self.device, "H")
    shape = _average_pool(self, 3, kernel_size, stride, padding, ceil_mode, divisor_override)
    return packed(self, shape)


@rule(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(grad_output: Spec, self: Spec, *_window: Any, **_named: Any) -> Spec:
    """Self's shape and memory format."""
    return formatted(self, self.shape)


@rule(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(grad_output: Spec, self: Spec, *_window: Any, **_named: Any) -> Spec:
    """Self's shape."""
    return packed(self, self.shape)


# 4. Adaptive pools


def _adapted(self: Spec, spatial: int, output_size: Sequence[Size]) -> tuple[Size, ...]:
    _check_spatial(self, spatial)
    if len(output_size) != spatial:
        raise RuntimeError(
            f"adaptive_pool{spatial}d: output_size must be {spatial} values, got "
            f"{list(output_size)}"
        )
    kept = -(spatial + 1) if self.ndim == spatial + 2 else -spatial
    for size in self.shape[kept:]:
        if eq(size, 0):
            raise RuntimeError(
                f"adaptive_pool{spatial}d(): Expected input to have non-zero size for "
                f"non-batch dimensions, but input has "
                f"sizes {list(self.shape)}"
            )
    return (*self.shape[:-spatial], *output_size)


@rule(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(self: Spec, output_size: Sequence[Size]) -> Spec:
    """Means of as many windows as asked for."""
    if not is_empty(self.shape):
        refuse("adaptive_avg_pool2d", self.dtype, self.device, "bic")
    return formatted(self, _adapted(self, 2, output_size))


@rule(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(self: Spec, output_size: Sequence[Size]) -> Spec:
    """Means of as many windows as asked for."""
    if not is_empty(self.shape):
        refuse("adaptive_avg_pool3d_cpu", self.dtype, self.device, "bic")
    return packed(self, _adapted(self, 3, output_size))


@rule(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad_output: Spec, self: Spec) -> Spec:
    """Self's shape and memory format."""
    return formatted(self, self.shape)


@rule(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(grad_output: Spec, self: Spec) -> Spec:
    """Self's shape."""
    return packed(self, self.shape)


@rule(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(self: Spec, output_size: Sequence[Size]) -> tuple[Spec, Spec]:
    """Maxima of as many windows as asked for, and where they stand."""
    refuse("adaptive_max_pool2d", self.dtype, self.device, "bic")
    shape = _adapted(self, 2, output_size)
    return formatted(self, shape), formatted(self, shape, torch.int64)


@rule(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(self: Spec, output_size: Sequence[Size]) -> tuple[Spec, Spec]:
    """Maxima of as many windows as asked for, and where they stand."""
    refuse("adaptive_max_pool3d_cpu", self.dtype, self.device, "bic")
    shape = _adapted(self, 3, output_size)
    return packed(self, shape), packed(self, shape, torch.int64)


@rule(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(grad_output: Spec, self: Spec, indices: Spec) -> Spec:
    """Self's shape and memory format."""
    return formatted(self, self.shape)


@rule(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(grad_output: Spec, self: Spec, indices: Spec) -> Spec:
    """Self's shape."""
    return packed(self, self.shape)


# 3. Windows drawn at random, and undone maxima


def _drawn_windows(
    self: Spec, kernel_size: Sequence[Size], output_size: Sequence[Size], spatial: int
) -> tuple[Spec, Spec]:
    if self.ndim not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"fractional_max_pool{spatial}d: Expected {spatial + 1}D or {spatial + 2}D "
            f"tensor, but got {self.ndim}D"
        )
    output, kernel = spread(output_size, spatial), spread(kernel_size, spatial)
    for size, window, extent in zip(output, kernel, self.shape[-spatial:], strict=True):
        reach = size + window - 1
        if not (lt(reach, extent) if spatial == 3 else le(reach, extent)):
            raise RuntimeError(
                f"fractional_max_pool{spatial}d: pool size {window} too large relative to "
                f"input size {extent}"
            )
    shape = (*self.shape[:-spatial], *output)
    return (
        Spec.of(shape, dtype=self.dtype, device=self.device),
        Spec.of(shape, dtype=torch.int64, device=self.device),
    )


@rule(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(
    self: Spec, kernel_size: Sequence[Size], output_size: Sequence[Size], random_samples: Spec
) -> tuple[Spec, Spec]:
    """The greatest elements of the windows, and their places; row-major."""
    return _drawn_windows(self, kernel_size, output_size, 2)


@rule(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(
    self: Spec, kernel_size: Sequence[Size], output_size: Sequence[Size], random_samples: Spec
) -> tuple[Spec, Spec]:
    """As in two dimensions."""
    return _drawn_windows(self, kernel_size, output_size, 3)


@rule(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(
    grad_output: Spec,
    self: Spec,
    kernel_size: Sequence[Size],
    output_size: Sequence[Size],
    indices: Spec,
) -> Spec:
    """Row-major."""
    return Spec.of(self.shape, dtype=self.dtype, device=self.device)


def _unpooled(
    self: Spec, indices: Spec, output_size: Sequence[Size], spatial: int
) -> tuple[Size, ...]:
    if indices.dtype != torch.int64:
        raise RuntimeError(
            f"elements in indices should be type int64 but got: {dtype_name(indices.dtype)}"
        )
    if len(output_size) != spatial or self.ndim not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"max_unpool{spatial}d: the number of dimensions or of output sizes is wrong"
        )
    if not same_shape(self.shape, indices.shape):
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor "
            f"({list(self.shape)}) but got {list(indices.shape)}"
        )
    return (*self.shape[:-spatial], *output_size)


@rule(aten.max_unpool2d.default)
def max_unpool2d(self: Spec, indices: Spec, output_size: Sequence[Size]) -> Spec:
    """In the input's memory format."""
    return formatted(self, _unpooled(self, indices, output_size, 2))


@rule(aten.max_unpool3d.default)
def max_unpool3d(
    self: Spec,
    indices: Spec,
    output_size: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
) -> Spec:
    """Row-major."""
    shape = _unpooled(self, indices, output_size, 3)
    return Spec.of(shape, dtype=self.dtype, device=self.device)
