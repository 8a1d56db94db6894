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

from math import prod
from typing import TYPE_CHECKING

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
from flambeau_prims.image_convolutions import (
    ImageConvolution,
    image_convolution,
    padded_image,
    windows,
)
from flambeau_prims.strides import is_channels_last, is_contiguous

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

FEWEST_CHANNELS = 16
"""Of an image, and of the result: with fewer, words and vectors are not full."""


def is_convolution(node: Node) -> bool:
    """Whether a node convolves images that look quantised."""
    call = image_convolution(node)
    if call is None or not is_worth_it(call):
        return False
    return all(
        each.producer is not None and each.producer.op is prims.mul
        for each in (_image(call), call.weight)
    )


def is_worth_it(call: ImageConvolution) -> bool:
    """Whether the product of integers is faster, and its sums fit."""
    outputs, channels = call.weight.spec.shape[:2]
    return min(outputs, channels) >= FEWEST_CHANNELS and call.depth <= MOST_DEPTH


def _image(call: ImageConvolution) -> Value:
    """The image, in the layout in which it was computed."""
    producer = call.x.producer
    return producer.args[0] if producer is not None and producer.op is prims.clone else call.x


def rewrite_convolution(b: Builder, node: Node) -> bool:
    """Append the product of integers; False if the factors are none."""
    call = image_convolution(node)
    assert call is not None
    b.line = node.where
    x, weight = _quantised(b, _image(call), ()), _quantised(b, call.weight, (0,))
    if x is None or weight is None or not is_near(x.zero):
        return False
    if not is_channels_last(call.out.spec):
        return False
    image = _padded(b, call, x)
    if image is None:
        return False
    n, outputs, *pixels = call.out.spec.shape
    shape = (call.pixels, call.depth)
    rows = b.reshape(windows(b, call, image), shape)
    columns = b.reshape(b.permute(weight.integers, (0, 2, 3, 1)), (outputs, call.depth))
    left = Quantised(rows, x.scale, x.zero)
    right = Quantised(b.permute(columns, (1, 0)), weight.scale, weight.zero)
    added = [] if call.bias is None else [call.bias]
    product = multiplied(b, left, right, added, lambda: _sums(b, call, image))
    result = b.reshape(product, (n, *pixels, outputs))
    return define(b, call.out, b.permute(result, (0, 3, 1, 2)))


def _sums(b: Builder, call: ImageConvolution, image: Value) -> Value:
    """The sum of each window: of the channels of each pixel first, which many windows share."""
    sums = b.sum(b.cast(image, torch.int32), (3,))
    return b.sum(
        b.reshape(windows(b, call, sums), (call.pixels, prod(call.weight.spec.shape[2:]))), (1,)
    )


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


def _padded(b: Builder, call: ImageConvolution, x: Quantised) -> Value | None:
    """The image as (n, h, w, c) in this order, with the zero point around it."""
    if any(call.padding) and (isinstance(x.zero, Value) or x.zero not in range(-128, 128)):
        return None
    image = padded_image(b, call, x.integers, x.zero if any(call.padding) else 0)
    if is_contiguous(image.spec):
        return image
    copy = Value(b.fresh_name(), image.spec.fresh(image.spec.shape))
    copy.producer = Node(prims.clone, (image,), {}, (copy,), b.line)
    b.nodes.append(copy.producer)
    return copy
