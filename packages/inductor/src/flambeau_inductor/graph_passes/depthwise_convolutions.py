"""Compute depthwise convolutions of channels-last images in kernels of our own, on a CPU.

    x: f32[16, 96, 56, 56] channels-last;  w: f32[96, 1, 3, 3]
    y = aten.convolution.default(x, w, None, ...)         (96 groups)
    ->  p: f32[16, 58, 58, 96] = prims.pad(x as (n, h, w, c))
        t: f32[864] = prims.reshape(w as (kernel's h, kernel's w, c), (864,))
        s = prims.mul(p[:, 0:56, 0:56], t[0:96])
        s = prims.fma(p[:, 0:56, 1:57], t[96:192], s);  ...
        y = s as (n, c, h, w)

Such a convolution moves memory more than it computes. The kernel pads by leaving out, and computes
what follows on the convolution, too (a batch norm, an activation), which then is no pass over
memory of its own. What the convolution reads is in memory: each number of it is read for several
results. The weights are ordered by channels, which are the vectors of the kernel.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node
from flambeau_prims.image_convolutions import ImageConvolution, image_convolution, padded_image
from flambeau_prims.primitives import PRIMS
from flambeau_prims.strides import is_channels_last
from flambeau_runtime.build.isa import detect

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

MOST_TAPS = 9
"""Numbers of a kernel for each channel: oneDNN computes larger ones sooner."""

FEWEST_CHANNELS = 16
"""A vector of floats; with fewer, oneDNN's kernels win."""

SMALLEST_SIDE = 8
"""Of a smaller image, most points are at the border, which takes longer."""


def compute_depthwise_convolutions(graph: Graph) -> Graph:
    """Rewrite the depthwise convolutions of `graph`, in place."""
    found = {node: each for node in graph.nodes if (each := _matched(node)) is not None}
    if not found or not _multiplies_and_adds():
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if node in found:
            _compute(builder, found[node])
        else:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _matched(node: Node) -> ImageConvolution | None:
    """The convolution that a node is, if a kernel of our own computes it."""
    call = image_convolution(node, depthwise=True)
    if call is None or not is_channels_last(call.x.spec):
        return None
    channels, _, *taps = call.weight.spec.shape
    _, _, height, width = call.out.spec.shape
    if channels < FEWEST_CHANNELS or not 1 < taps[0] * taps[1] <= MOST_TAPS:
        return None
    if min(height, width) < SMALLEST_SIDE:
        return None
    dense = (height * width * channels, 1, width * channels, channels)
    return call if call.out.spec.stride == dense else None


def _multiplies_and_adds() -> bool:
    """Whether the machine has an instruction for it: a function of the C library is no match."""
    return platform.machine() != "x86_64" or detect() != "baseline"


def _compute(b: Builder, call: ImageConvolution) -> None:
    """Append the kernel's primitives; the last one makes the convolution's result."""
    b.line = call.node.where
    n, channels, *pixels = call.out.spec.shape
    shape = (n, *pixels, channels)
    # as_strided reads memory: the image and the ordered weights are written there before.
    x = call.x
    x = b.as_strided(x, x.spec.shape, x.spec.stride, x.spec.offset)
    image = padded_image(b, call, x, 0.0)
    rows, columns = call.weight.spec.shape[2:]
    weight = b.permute(b.reshape(call.weight, (channels, rows * columns)), (1, 0))
    weight = b.reshape(weight, (rows * columns * channels,))
    result = None if call.bias is None else b.expand(call.bias, shape)
    for row in range(rows):
        for column in range(columns):
            tap = image
            for dim, at in ((1, row), (2, column)):
                start, step = at * call.dilation[dim - 1], call.stride[dim - 1]
                tap = b.slice(tap, dim, start, start + (pixels[dim - 1] - 1) * step + 1, step)
            number = (row * columns + column) * channels
            factor = b.expand(b.as_strided(weight, (channels,), (1,), number), shape)
            result = b.mul(tap, factor) if result is None else b.fma(tap, factor, result)
    call.out.producer = Node(PRIMS["permute"], (result, (0, 3, 1, 2)), {}, (call.out,), b.line)
    b.nodes.append(call.out.producer)
