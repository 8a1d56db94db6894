"""Convolutions of images on a CPU as products of matrices: which calls, and the windows.

    x: f32[1, 64, 9, 9];  w: f32[96, 64, 3, 3];  y = aten.convolution.default(x, w, ...)
    padded: f32[1, 11, 11, 64] = prims.pad(x as (n, h, w, c))
    windows: f32[1, 9, 9, 3, 3, 64], a view of it

Each pixel of y is computed from one (3, 3, 64) of the windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Node, Value

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ImageConvolution:
    """A convolution of images, all of whose sizes are known."""

    node: Node
    x: Value
    weight: Value
    bias: Value | None
    out: Value
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def pixels(self) -> int:
        """The rows of the product."""
        n, _, height, width = self.out.spec.shape
        return int(n * height * width)

    @property
    def depth(self) -> int:
        """The numbers that a number of the result is computed from."""
        return prod(int(size) for size in self.weight.spec.shape[1:])

    @property
    def is_plain(self) -> bool:
        """Whether each pixel is computed from one."""
        return self.weight.spec.shape[2:] == (1, 1) and self.padding == (0, 0)


def image_convolution(node: Node, *, depthwise: bool = False) -> ImageConvolution | None:
    """The convolution that a node is: of floats of 32 bits, on a CPU, in one group; `depthwise`:
    each channel in a group of its own.
    """
    if node.op is not aten.convolution.default or node.kwargs:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    (out,) = node.outputs
    if out is None or transposed or x.spec.ndim != 4:
        return None
    if depthwise:
        if not weight.spec.shape[0] == x.spec.shape[1] == groups or groups == 1:
            return None
    elif groups != 1:
        return None
    if x.spec.device.type != "cpu" or any(
        each.spec.dtype is not torch.float32 for each in (x, weight, out)
    ):
        return None
    sizes = [*x.spec.shape, *weight.spec.shape, *stride, *padding, *dilation]
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or 0 in out.spec.shape:
        return None
    pairs = (_pair(each) for each in (stride, padding, dilation))
    return ImageConvolution(node, x, weight, bias, out, *pairs)


def _pair(sizes: Any) -> tuple[int, int]:
    first, *rest = sizes
    return first, rest[0] if rest else first


def padded_image(b: Builder, call: ImageConvolution, x: Value, margin: float) -> Value:
    """An image (n, c, h, w) as (n, h, w, c), with a number around it."""
    image = b.permute(x, (0, 2, 3, 1))
    if any(call.padding):
        margins = (0, *call.padding, 0)
        image = b.pad(image, margins, margins, margin)
    return image


def windows(b: Builder, call: ImageConvolution, image: Value) -> Value:
    """(n, h, w, kernel's h, kernel's w, ...): what each pixel of the result is computed from, a
    view of a padded image (n, h, w, ...).
    """
    n, _, *pixels = call.out.spec.shape
    step_n, *steps = image.spec.stride[:3]
    moves = [step * size for step, size in zip(steps, call.stride, strict=True)]
    taps = [step * size for step, size in zip(steps, call.dilation, strict=True)]
    shape = (n, *pixels, *call.weight.spec.shape[2:], *image.spec.shape[3:])
    stride = (step_n, *moves, *taps, *image.spec.stride[3:])
    return b.as_strided(image, shape, stride, image.spec.offset)
