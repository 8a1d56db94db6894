"""Shape rules of resampling and windows: upsample, grid_sampler, pads, im2col, pixel_shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.pointwise import refuse
from flambeau_prims.rules.pool import formatted
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq, ge, le, lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_contiguous, product, same_shape, suggested_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


# 1. Upsampling


def _defaults(names: str) -> Iterator[Any]:
    """The default overloads of these operators, those this torch has."""
    for name in names.split():
        packet = getattr(aten, name, None)
        if packet is not None:
            yield packet.default


def upsampled_shape(self: Spec, output_size: Sizes) -> tuple[Size, ...]:
    """[n, c, *output_size]."""
    if self.ndim != len(output_size) + 2:
        raise RuntimeError(
            f"It is expected input_size equals to {len(output_size) + 2}, but got size {self.ndim}"
        )
    if any(le(size, 0) for size in (*self.shape[2:], *output_size)):
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input "
            f"{list(self.shape)} output {list(output_size)}"
        )
    return (*self.shape[:2], *output_size)


@rule(
    *_defaults(
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d upsample_bicubic2d"
    )
)
def upsample(self: Spec, output_size: Sizes, *_options: Any, **_named: Any) -> Spec:
    """In self's memory format.  Images of bytes are resampled; no kernel takes other integers."""
    if self.dtype != torch.uint8:
        refuse("upsample", self.dtype, self.device, "bic")
    return formatted(self, upsampled_shape(self, output_size))


@rule(
    *_defaults(
        "upsample_nearest1d_backward upsample_nearest2d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward"
    )
)
def upsample_backward(
    grad_output: Spec, output_size: Sizes, input_size: Sizes, *_options: Any, **_named: Any
) -> Spec:
    """The input's shape, in the gradient's memory format."""
    return formatted(grad_output, tuple(input_size))


@rule(
    *_defaults(
        "upsample_nearest3d_backward _upsample_nearest_exact3d_backward upsample_bicubic2d_backward"
    )
)
def upsample_backward_packed(grad_output: Spec, input_size: Sizes) -> Spec:
    """The input's shape, row-major."""
    return grad_output.fresh(tuple(input_size))


_ANTIALIASED = "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa"


@rule(*_defaults(_ANTIALIASED))
def upsample_antialiased(self: Spec, output_size: Sizes) -> Spec:
    """In self's memory format."""
    if not same_shape(self.shape[2:], tuple(output_size)):
        refuse("compute_index_ranges_weights", self.dtype, self.device, "H")
    return upsample(self, output_size)


@rule(*_defaults("_upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa_backward"))
def upsample_antialiased_backward(grad_output: Spec, *args: Any, **options: Any) -> Spec:
    """The input's shape, in the gradient's memory format."""
    refuse("upsample_aa_backward", grad_output.dtype, grad_output.device, "H")
    return upsample_backward(grad_output, *args, **options)


@rule(*_defaults("_upsample_bicubic2d_aa_backward"))
def upsample_antialiased_backward_packed(grad_output: Spec, input_size: Sizes) -> Spec:
    """The input's shape, row-major."""
    refuse("upsample_aa_backward", grad_output.dtype, grad_output.device, "H")
    return grad_output.fresh(tuple(input_size))


# 2. Sampling at a grid


def _sampled_shape(input: Spec, grid: Spec) -> tuple[Size, ...]:
    spatial = input.ndim - 2
    if (
        grid.ndim != input.ndim
        or not eq(grid.shape[0], input.shape[0])
        or not eq(grid.shape[-1], spatial)
    ):
        raise RuntimeError(
            f"grid_sampler(): expected grid and input to have same batch size and the grid "
            f"a last dimension of {spatial}, "
            f"but got input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.dtype != grid.dtype:
        raise RuntimeError(
            "grid_sampler(): expected input and grid to have same dtype, but input has "
            f"{dtype_name(input.dtype)} and grid has {dtype_name(grid.dtype)}"
        )
    return (*input.shape[:2], *grid.shape[1:-1])


@rule(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    input: Spec, grid: Spec, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Spec:
    """The input at the grid's points, row-major."""
    return input.fresh(_sampled_shape(input, grid))


@rule(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    input: Spec, grid: Spec, output_mask: Sequence[bool]
) -> tuple[Spec | None, Spec]:
    """Gradients of input and grid."""
    return input.fresh() if output_mask[0] else None, grid.fresh()


@rule(aten.affine_grid_generator.default)
def affine_grid_generator(theta: Spec, size: Sizes) -> Spec:
    """[n, *spatial, number of spatial dimensions]."""
    return theta.fresh((size[0], *size[2:], len(size) - 2))


# 3. Padding by reflection and replication


def _padded(self: Spec, padding: Sizes, spatial: int, reflects: bool) -> tuple[Size, ...]:
    if len(padding) != 2 * spatial:
        raise RuntimeError(f"padding size is expected to be {2 * spatial}, but got: {len(padding)}")
    if self.ndim not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"Expected {spatial + 1}D or {spatial + 2}D (batch mode) tensor with possibly 0 batch "
            f"size for input, but got: {list(self.shape)}"
        )
    shape = list(self.shape)
    for position in range(spatial):
        dim = self.ndim - 1 - position
        before, after = padding[2 * position], padding[2 * position + 1]
        if reflects and (ge(before, shape[dim]) or ge(after, shape[dim])):
            raise RuntimeError(
                "Padding size should be less than the corresponding input dimension, but got: "
                f"padding ({before}, {after}) at dimension {dim} of input {list(self.shape)}"
            )
        shape[dim] = shape[dim] + before + after
        if lt(shape[dim], 1):
            raise RuntimeError(f"input {list(self.shape)} is too small for padding {list(padding)}")
    return tuple(shape)


@rule(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(self: Spec, padding: Sizes) -> Spec:
    """Mirrored at the borders, in self's memory format (row-major on a GPU)."""
    return _formatted_on_cpu(self, _padded(self, padding, len(padding) // 2, reflects=True))


@rule(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(self: Spec, padding: Sizes) -> Spec:
    """The border repeated, in self's memory format (row-major on a GPU)."""
    return _formatted_on_cpu(self, _padded(self, padding, len(padding) // 2, reflects=False))


@rule(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def pad_backward(self: Spec) -> Spec:
    """Self's shape and memory format (row-major on a GPU)."""
    return _formatted_on_cpu(self, self.shape)


def _formatted_on_cpu(self: Spec, shape: tuple[Size, ...]) -> Spec:
    return formatted(self, shape) if self.device.type == "cpu" else self.fresh(shape)


# 4. Windows as columns, and shuffled pixels


def _blocks(size: Size, kernel: Size, dilation: Size, padding: Size, stride: Size) -> Size:
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if lt(count, 1):
        raise RuntimeError(
            f"the calculated number of sliding blocks is {count}, but must be at least one "
            f"(size {size}, kernel {kernel})"
        )
    return count


@rule(aten.im2col.default)
def im2col(self: Spec, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Spec:
    """[n, c * kernel, blocks]."""
    if self.ndim not in (3, 4):
        raise RuntimeError(
            f"Expected 3D or 4D (batch mode) tensor for im2col, got {list(self.shape)}"
        )
    counts = [
        _blocks(*sizes)
        for sizes in zip(self.shape[-2:], kernel_size, dilation, padding, stride, strict=True)
    ]
    return self.fresh((*self.shape[:-3], self.shape[-3] * product(kernel_size), product(counts)))


@rule(aten.col2im.default)
def col2im(
    self: Spec,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Spec:
    """[n, c, *output_size] from [n, c * kernel, blocks]."""
    if self.ndim not in (2, 3):
        raise RuntimeError(
            f"Expected 2D or 3D (batch mode) tensor for col2im, got {list(self.shape)}"
        )
    area = product(kernel_size)
    blocks = product(
        [_blocks(*s) for s in zip(output_size, kernel_size, dilation, padding, stride, strict=True)]
    )
    if not eq(self.shape[-2] % area, 0) or not eq(self.shape[-1], blocks):
        raise RuntimeError(
            f"Given output_size={list(output_size)} and kernel_size={list(kernel_size)}, "
            f"expected the input's last two "
            f"dimensions to be a multiple of {area} and {blocks}, but got {list(self.shape)}"
        )
    return self.fresh((*self.shape[:-2], self.shape[-2] // area, *output_size))


def _check_image_format(self: Spec) -> None:
    if (
        self.ndim == 5
        and self.device.type == "cpu"
        and suggested_format(self) != torch.contiguous_format
    ):
        raise RuntimeError("Unsupported memory format. Supports only ChannelsLast, Contiguous")


@rule(aten.pixel_shuffle.default)
def pixel_shuffle(self: Spec, upscale_factor: int) -> Spec:
    """Channels to space."""
    if self.ndim < 3:
        raise RuntimeError(
            f"pixel_shuffle expects input to have at least 3 dimensions, but got input "
            f"with {self.ndim} dimension(s)"
        )
    area = upscale_factor * upscale_factor
    channels, height, width = self.shape[-3:]
    if not eq(channels % area, 0):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input.size(-3)={channels} is not divisible by {area}"
        )
    _check_image_format(self)
    shape = (*self.shape[:-3], channels // area, height * upscale_factor, width * upscale_factor)
    return _formatted_on_cpu(self, shape)


@rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(self: Spec, downscale_factor: int) -> Spec:
    """Space to channels."""
    if self.ndim < 3:
        raise RuntimeError(
            f"pixel_unshuffle expects input to have at least 3 dimensions, but got input "
            f"with {self.ndim} dimension(s)"
        )
    channels, height, width = self.shape[-3:]
    if not same_shape((height % downscale_factor, width % downscale_factor), (0, 0)):
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by "
            f"downscale_factor, but got {height} and {width}"
        )
    _check_image_format(self)
    shape = (
        *self.shape[:-3],
        channels * downscale_factor * downscale_factor,
        height // downscale_factor,
        width // downscale_factor,
    )
    return _formatted_on_cpu(self, shape)


@rule(*overloads("channel_shuffle"))
def channel_shuffle(self: Spec, groups: Size) -> Spec:
    """Channels interleaved. A GPU's kernel is a chain of views and `contiguous`, which copies
    nothing if each group has one channel or all.
    """
    if not ge(groups, 1):
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{groups}"
        )
    if self.ndim < 3 or not eq(self.shape[1] % groups, 0):
        raise RuntimeError(
            f"channel_shuffle expects a tensor of 3 or more dimensions with channels "
            f"divisible by {groups}, got {list(self.shape)}"
        )
    same_order = eq(groups, 1) or eq(groups, self.shape[1])
    if self.device.type != "cpu" and same_order and is_contiguous(self):
        return self
    return _formatted_on_cpu(self, self.shape)
