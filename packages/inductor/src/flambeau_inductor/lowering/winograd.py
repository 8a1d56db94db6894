"""Lower convolutions that `flambeau_prims.winograd` knows, and gradients of their weights, to
kernels of our own (`codegen/cpp/winograd.py`).

y = aten.convolution.default(x, w, b, [1, 1], [1, 1], ...)
->  buf0 = extern flambeau.winograd_weights(w, [sizes and strides])
    buf1 = extern flambeau.winograd_convolution(x, buf0, w, b, [sizes and strides])

_, gw, _ = aten.convolution_backward.default(g, x, w, ..., [False, True, False])
->  buf0 = extern flambeau.winograd_gradient(x, g, [sizes and strides])
    buf1 = extern flambeau.winograd_gradient_sum(buf0, [sizes and strides])

Where the weights do not change between calls, their transform is one of the steps that `prepare`
takes out of the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.lowering.kernel_calls import append_kernel_call
from flambeau_prims.sizes import hint_of
from flambeau_prims.winograd import (
    WinogradConvolution,
    WinogradGradient,
    winograd_convolution,
    winograd_gradient,
)

if TYPE_CHECKING:
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size, Spec

WEIGHTS, CONVOLUTION = "flambeau.winograd_weights", "flambeau.winograd_convolution"
GRADIENT_SHARES, GRADIENT_SUM = "flambeau.winograd_gradient", "flambeau.winograd_gradient_sum"

PRODUCTS = 16
"""Products of a pair of channels, for 2 x 2 pixels."""

TASKS = 32
"""Gradients are summed in so many tasks at least, of 64 x 64 pairs of channels and a share of the
tiles, whatever the number of threads.
"""

LEAST_TILES = 192
"""A share has at least so many tiles."""


def lower_winograd(lowering: Any, node: Node) -> bool:
    """Append the calls for a node, if it is such a convolution or gradient. `lowering` is the
    `_GraphLowering`, whose module imports this one.
    """
    convolution = winograd_convolution(node)
    if convolution is not None:
        _convolve(lowering, node, convolution)
        return True
    gradient = winograd_gradient(node)
    if gradient is not None:
        _sum_gradient(lowering, node, gradient)
    return gradient is not None


def _convolve(lowering: Any, node: Node, call: WinogradConvolution) -> None:
    weight = call.weight.spec
    ints = _weight_ints(weight, call.transposed)
    count = PRODUCTS * weight.shape[0] * weight.shape[1]
    transformed = lowering.make_unnamed(weight.fresh((count,)))
    operands = [lowering.tensor(call.weight)]
    append_kernel_call(lowering, node, WEIGHTS, operands, ints, [transformed.buffer])
    operands = [lowering.tensor(call.x), transformed, lowering.tensor(call.weight)]
    if call.bias is not None:
        operands.append(lowering.tensor(call.bias))
    ints += [*_image_ints(call.x.spec, call.out.spec), *call.padding, call.bias is not None]
    append_kernel_call(lowering, node, CONVOLUTION, operands, ints, [lowering.make(call.out)])


def _sum_gradient(lowering: Any, node: Node, call: WinogradGradient) -> None:
    x, y, out = call.x.spec, call.gradient.spec, call.out.spec
    lanes, channels = out.shape[:2]
    pairs = -(-lanes // 64) * -(-channels // 64)
    count, _, rows, columns = (hint_of(size) for size in y.shape)
    tiles = count * ((rows + 1) // 2) * ((columns + 1) // 2)
    shares = max(1, min(-(-TASKS // pairs), tiles // LEAST_TILES))
    sums = lowering.make_unnamed(out.fresh((shares * channels * 9 * lanes,)))
    ints = [*_weight_ints(out, False), *_image_ints(x, y), *call.padding, shares]
    operands = [lowering.tensor(call.x), lowering.tensor(call.gradient)]
    append_kernel_call(lowering, node, GRADIENT_SHARES, operands, ints, [sums.buffer])
    append_kernel_call(lowering, node, GRADIENT_SUM, [sums], ints, [lowering.make(call.out)])


def _weight_ints(weight: Spec, transposed: bool) -> list[Size]:
    """Channels of the image and of the result, and where the weight of a pair of them lies."""
    (lanes, channels, *_), (lane_step, step, row, column) = weight.shape, weight.stride
    if transposed:  # the numbers of a window are in reverse order
        last = 2 * row + 2 * column
        return [lanes, lane_step, channels, step, last, -row, -column]
    return [channels, step, lanes, lane_step, 0, row, column]


def _image_ints(x: Spec, y: Spec) -> list[Size]:
    """The number of images; rows and columns of the image and of the result; their steps from an
    image to the next one, from a row, and from a column.
    """
    return [
        x.shape[0], *x.shape[2:], x.stride[0], *x.stride[2:],
        *y.shape[2:], y.stride[0], *y.stride[2:],
    ]  # fmt: skip
