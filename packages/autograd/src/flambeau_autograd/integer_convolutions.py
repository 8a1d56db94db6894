"""Convolve quantised images by quantised weights as products of integers, on a CPU.

    q: u8[1, 64, 9, 9] channels-last;  w: i8[96, 64, 3, 3];  both dequantised
    y = aten.convolution.default(x, d, b, [1, 1], [1, 1], ...)
    ->  p: i8[1, 11, 11, 64] = prims.pad(q - 128 as (n, h, w, c), the zero point)
        i: i8[81, 576] = prims.reshape(windows of p as (n, h, w, kernel's h, kernel's w, c))
        y = the product of i and w as (576, 96), as (n, c, h, w)

Only where channels are many enough to be read as words, and results are channels-last: then the
copies of pixels are of whole rows of channels. An image in another order is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.quantised_factors import (
    MOST_DEPTH,
    Number,
    Quantised,
    define,
    integers_of,
    is_near,
    multiplied,
    signed,
)
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Node, Value
from flambeau_prims.strides import is_channels_last, is_contiguous

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten

FEWEST_CHANNELS = 16
"""Of an image, and of the result: with fewer, words and vectors are not full."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution of images, all of whose sizes are known."""

    x: Value
    weight: Value
    bias: Value | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def is_convolution(node: Node) -> bool:
    """Whether a node convolves images that look quantised."""
    return _convolution(node) is not None


def _convolution(node: Node) -> _Convolution | None:
    if node.op is not aten.convolution.default or node.kwargs:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    (out,) = node.outputs
    if out is None or transposed or groups != 1 or x.spec.ndim != 4:
        return None
    if x.spec.device.type != "cpu" or any(
        each.spec.dtype is not torch.float32 for each in (x, weight, out)
    ):
        return None
    sizes = [*x.spec.shape, *weight.spec.shape, *stride, *padding, *dilation]
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or 0 in out.spec.shape:
        return None
    outputs, channels, *kernel = weight.spec.shape
    if min(outputs, channels) < FEWEST_CHANNELS or channels * prod(kernel) > MOST_DEPTH:
        return None
    if x.producer is not None and x.producer.op is prims.clone:
        x = x.producer.args[0]  # in another layout
    if any(each.producer is None or each.producer.op is not prims.mul for each in (x, weight)):
        return None
    return _Convolution(x, weight, bias, _pair(stride), _pair(padding), _pair(dilation))


def _pair(sizes: Any) -> tuple[int, int]:
    first, *rest = sizes
    return first, rest[0] if rest else first


def rewrite_convolution(b: Builder, node: Node) -> bool:
    """Append the product of integers; False if the factors are none."""
    call = _convolution(node)
    (out,) = node.outputs
    assert call is not None and out is not None
    b.line = node.where
    x, weight = _quantised(b, call.x, ()), _quantised(b, call.weight, (0,))
    if x is None or weight is None or not is_near(x.zero):
        return False
    if not is_channels_last(out.spec):
        return False
    n, outputs, *pixels = out.spec.shape
    windows = _windows(b, call, x, pixels)
    if windows is None:
        return False
    depth = prod(call.weight.spec.shape[1:])
    rows = b.reshape(windows, (n * prod(pixels), depth))
    columns = b.reshape(b.permute(weight.integers, (0, 2, 3, 1)), (outputs, depth))
    left = Quantised(rows, x.scale, x.zero)
    right = Quantised(b.permute(columns, (1, 0)), weight.scale, weight.zero)
    added = [] if call.bias is None else [call.bias]
    image = b.reshape(multiplied(b, left, right, added), (n, *pixels, outputs))
    return define(b, out, b.permute(image, (0, 3, 1, 2)))


def _quantised(b: Builder, value: Value, dims: tuple[int, ...]) -> Quantised | None:
    """A factor as int8 numbers, with a scale and a zero point for all, or for each index of the
    `dims`.
    """
    assert value.producer is not None
    first, second = value.producer.args
    for scaled, scale in ((first, second), (second, first)):
        matched = integers_of(scaled)
        if matched is None:
            continue
        scale, zero = (_along(b, each, dims) for each in (scale, matched[1]))
        if scale is None or zero is None:
            return None
        integers, zero = signed(b, matched[0], zero)
        return Quantised(integers, scale, zero)
    return None


def _along(b: Builder, number: Number, dims: tuple[int, ...]) -> Number | None:
    """A number, or a tensor of one for all or for each index of `dims`; None if they vary along
    others.
    """
    if not isinstance(number, Value):
        return number
    stride, shape = number.spec.stride, number.spec.shape
    if any(stride[dim] != 0 and shape[dim] != 1 for dim in range(4) if dim not in dims):
        return None
    rest = tuple(dim for dim in range(4) if dim not in dims)
    for dim in rest:
        number = b.slice(number, dim, 0, 1, 1)
    return b.squeeze(number, rest)


def _windows(b: Builder, call: _Convolution, x: Quantised, pixels: list[Any]) -> Value | None:
    """(n, h, w, kernel's h, kernel's w, channels): what each pixel of the result is computed from,
    a view of the padded image.
    """
    image = b.permute(x.integers, (0, 2, 3, 1))
    if any(call.padding):
        if isinstance(x.zero, Value) or x.zero not in range(-128, 128):
            return None
        margins = (0, *call.padding, 0)
        image = b.pad(image, margins, margins, int(x.zero))
    if not is_contiguous(image.spec):
        copy = Value(b.fresh_name(), image.spec.fresh(image.spec.shape))
        copy.producer = Node(prims.clone, (image,), {}, (copy,), b.line)
        b.nodes.append(copy.producer)
        image = copy
    n, _, _, channels = image.spec.shape
    step_n, *steps, step_c = image.spec.stride
    moves = [step * size for step, size in zip(steps, call.stride, strict=True)]
    taps = [step * size for step, size in zip(steps, call.dilation, strict=True)]
    shape = (n, *pixels, *call.weight.spec.shape[2:], channels)
    return b.as_strided(image, shape, (step_n, *moves, *taps, step_c), image.spec.offset)
