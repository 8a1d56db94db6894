"""Shape rules of pooling: max, average, adaptive, and their backwards."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name, is_integral
from flambeau_prims.rules.pointwise import not_implemented, refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ceil_div, eq, ge, le, lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, same_shape, stride_for, suggested_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


def formatted(self: Spec, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> Spec:
    """A new tensor of this shape in self's suggested memory format."""
    return self.fresh(shape, stride_for(shape, suggested_format(self)), dtype=dtype)


# 1. Windows


def spread(values: Sizes, ndim: int, default: Sizes = ()) -> tuple[Size, ...]:
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
        if not eq(self.shape[dim], 0):
            continue
        if spatial == 2:
            raise RuntimeError(
                "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, "
                f"but got:{list(self.shape)}"
            )
        raise RuntimeError(
            f"{kernel}(): Expected input's non-batch dimensions to have positive length, but input "
            f"has a shape of {list(self.shape)} and non-batch dimension {self.shape[dim]} has "
            f"length zero!"
        )


def windowed_shape(
    self: Spec,
    spatial: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
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


# 2. Pools of two and three spatial dimensions


def _declare(spatial: int, names: str, function: Callable[..., Any]) -> None:
    """Make `function` the rule of these operators of `spatial` dimensions."""
    for name in names.split():
        rule(getattr(aten, name).default)(partial(function, spatial=spatial))


def _pooled(
    self: Spec, shape: tuple[Size, ...], spatial: int, dtype: torch.dtype | None = None
) -> Spec:
    """In self's memory format in two dimensions, row-major in three."""
    return formatted(self, shape, dtype) if spatial == 2 else self.fresh(shape, dtype=dtype)


def like_input(self: Spec, *, spatial: int) -> Spec:
    """The gradient of the input."""
    return _pooled(self, self.shape, spatial)


def max_pool(
    self: Spec,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    *,
    spatial: int,
) -> tuple[Spec, Spec]:
    """Values, and flat positions in each plane or volume."""
    name = "max_pool2d"
    if spatial == 3:
        _check_volume_format(self)
        name = "max_pool3d_with_indices_out_cpu_template"
    window = (kernel_size, stride, padding, dilation)
    shape = windowed_shape(self, spatial, *window, ceil_mode, name)
    return formatted(self, shape), formatted(self, shape, torch.int64)


@rule(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_with_indices_backward(grad_output: Spec, self: Spec) -> Spec:
    """Self's shape and memory format."""
    _check_volume_format(self)
    _check_volume_format(grad_output)
    return formatted(self, self.shape)


def _check_volume_format(self: Spec) -> None:
    if self.ndim == 4 and suggested_format(self) != torch.contiguous_format:
        raise RuntimeError("Unsupported memory format. Supports only ChannelsLast3d, Contiguous")


def average_pool(
    self: Spec,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    divisor_override: int | None,
    *,
    spatial: int,
) -> Spec:
    """Means of windows."""
    if spatial == 3:
        refuse("avg_pool3d_out_frame", self.dtype, self.device, "H")
        _check_kernel_fits(self, spread(kernel_size, 3))
    if divisor_override == 0:
        raise RuntimeError("divisor must be not zero")
    name = f"avg_pool{spatial}d"
    if is_integral(self.dtype) and self.dtype != torch.int64:
        raise not_implemented(name, self.dtype)
    window = (kernel_size, stride, padding, (1,))
    return _pooled(self, windowed_shape(self, spatial, *window, ceil_mode, name), spatial)


def _check_kernel_fits(self: Spec, kernel: tuple[Size, ...]) -> None:
    """In three dimensions a kernel may not reach over the image, padded or not."""
    _check_spatial(self, 3)
    image = self.shape[-3:]
    if not all(ge(size, extent) for size, extent in zip(image, kernel, strict=True)):
        t, h, w = image
        kt, kh, kw = kernel
        raise RuntimeError(
            f"input image (T: {t} H: {h} W: {w}) smaller than kernel size "
            f"(kT: {kt} kH: {kh} kW: {kw})"
        )


def _adapted(self: Spec, output_size: Sizes, spatial: int) -> tuple[Size, ...]:
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
                f"non-batch dimensions, but input has sizes {list(self.shape)}"
            )
    return (*self.shape[:-spatial], *output_size)


_KERNELS = {2: "2d", 3: "3d_cpu"}


def adaptive_average_pool(self: Spec, output_size: Sizes, *, spatial: int) -> Spec:
    """Means of as many windows as asked for."""
    if not is_empty(self.shape):
        refuse(f"adaptive_avg_pool{_KERNELS[spatial]}", self.dtype, self.device, "bic")
    return _pooled(self, _adapted(self, output_size, spatial), spatial)


def adaptive_max_pool(self: Spec, output_size: Sizes, *, spatial: int) -> tuple[Spec, Spec]:
    """Maxima of as many windows as asked for, and their positions."""
    refuse(f"adaptive_max_pool{_KERNELS[spatial]}", self.dtype, self.device, "bic")
    shape = _adapted(self, output_size, spatial)
    return _pooled(self, shape, spatial), _pooled(self, shape, spatial, torch.int64)


def fractional_max_pool(
    self: Spec, kernel_size: Sizes, output_size: Sizes, *, spatial: int
) -> tuple[Spec, Spec]:
    """The maxima of windows drawn at random, and their positions; row-major."""
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
    values = self.fresh((*self.shape[:-spatial], *output))
    return values, values.replace(dtype=torch.int64)


@rule(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(self: Spec) -> Spec:
    """Row-major."""
    return self.fresh()


def max_unpool(self: Spec, indices: Spec, output_size: Sizes, *, spatial: int) -> Spec:
    """Zeros, except at the positions of maxima; in self's memory format (row-major on a GPU)."""
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
    shape = (*self.shape[:-spatial], *output_size)
    result = _pooled(self, shape, spatial) if self.device.type == "cpu" else self.fresh(shape)
    if not is_empty(self.shape):
        refuse(f"max_unpool{spatial}d", self.dtype, self.device, "bic")
    return result


for _d in (2, 3):
    _declare(_d, f"max_pool{_d}d_with_indices", max_pool)
    _declare(_d, f"avg_pool{_d}d", average_pool)
    _declare(_d, f"_adaptive_avg_pool{_d}d", adaptive_average_pool)
    _declare(_d, f"adaptive_max_pool{_d}d", adaptive_max_pool)
    _declare(_d, f"fractional_max_pool{_d}d", fractional_max_pool)
    _declare(_d, f"max_unpool{_d}d", max_unpool)
    _declare(_d, f"avg_pool{_d}d_backward _adaptive_avg_pool{_d}d_backward", like_input)
    _declare(_d, f"adaptive_max_pool{_d}d_backward", like_input)
_declare(2, "max_pool2d_with_indices_backward", like_input)
