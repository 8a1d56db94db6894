"""Multiply few pixels by large weights as matrices, on a CPU, and pixels to very large results.

    x: f32[1, 512, 7, 7] channels-last;  w: f32[512, 512, 3, 3]
    y = aten.convolution.default(x, w, None, [1, 1], [1, 1], ...)
    ->  p: f32[1, 9, 9, 512] = prims.pad(x as (n, h, w, c))
        q: f32[49, 4608] = prims.reshape(windows of p as (n, h, w, c, kernel's h, kernel's w))
        m: f32[49, 512] = aten.mm.default(q, w as (4608, 512))
        y = m as (n, c, h, w)

oneDNN's convolutions copy weights into an order of their own in every call, by one number after the
other. For few pixels that takes longer than the convolution. A matrix product reads weights as they
lie. Weights that are computed once (`freezing`) are in oneDNN's order before this pass.

A convolution's result is memory that ATen allocates. Of more than 32 MiB the C library gives it
back with every tensor, so each call pays for its pages: 2 ns a float, in which a core multiplies
and adds 100 times. A product's result is memory of the Program, whose pages stay
(`flambeau_runtime.large_memory`). BLAS takes up to half as long again as oneDNN for the product
itself, so the product wins if a number of the result is computed from few.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
from flambeau_prims.image_convolutions import (
    ImageConvolution,
    image_convolution,
    padded_image,
    windows,
)
from flambeau_prims.primitives import PRIMS
from flambeau_prims.rules.registry import infer
from flambeau_prims.strides import is_channels_last, is_contiguous

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

aten = torch.ops.aten

FEWEST_WEIGHTS = 1 << 18
"""The copy of smaller weights costs less than a product loses beside a convolution."""

LEAST_SHARE = 2
"""A product wins where weights have so many times as many rows as there are pixels."""

GIVEN_BACK = 32 << 20
"""Results of more bytes are fresh memory in every call."""

MOST_DEPTH = 128
"""A number of such a result takes longer than its pages if it is computed from more."""


def convolutions_to_products(graph: Graph) -> Graph:
    """Rewrite the convolutions of `graph` that products compute sooner, in place."""
    found = {node: each for node in graph.nodes if (each := _matched(node)) is not None}
    if not found:
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if node in found:
            _multiply(builder, found[node])
        else:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _matched(node: Node) -> ImageConvolution | None:
    """The convolution that a node is, if a product computes it sooner."""
    call = image_convolution(node)
    if call is None:
        return None
    if not is_channels_last(call.x.spec) or not (
        is_contiguous(call.weight.spec) or is_channels_last(call.weight.spec)
    ):
        return None
    if torch._C._get_fp32_precision_getter("mkldnn", "matmul") not in ("none", "ieee"):
        return None  # of products, not of convolutions
    _, channels, height, width = call.out.spec.shape
    if call.out.spec.stride != (height * width * channels, 1, width * channels, channels):
        return None
    return call if _is_worth_it(call) else None


def _is_worth_it(call: ImageConvolution) -> bool:
    outputs, *depth = call.weight.spec.shape
    copies = not call.is_plain or call.stride != (1, 1)
    if not copies and call.depth <= MOST_DEPTH and 4 * call.pixels * outputs > GIVEN_BACK:
        return True
    if outputs * prod(depth) < FEWEST_WEIGHTS:
        return False
    # Windows of one pixel need no copies of pixels.
    most = max(outputs, depth[0]) if call.is_plain else outputs
    return LEAST_SHARE * call.pixels <= most


def _multiply(b: Builder, call: ImageConvolution) -> None:
    """Append the product, and a view of it in place of the convolution's result."""
    b.line = call.node.where
    weight, outputs, depth = call.weight, call.weight.spec.shape[0], call.depth
    patches = windows(b, call, padded_image(b, call, call.x, 0.0))
    if is_contiguous(weight.spec):
        patches = b.permute(patches, (0, 1, 2, 5, 3, 4))
    else:
        weight = b.permute(weight, (0, 2, 3, 1))
    rows = b.reshape(patches, (call.pixels, depth))
    columns = b.permute(b.reshape(weight, (outputs, depth)), (1, 0))
    args = (rows, columns) if call.bias is None else (call.bias, rows, columns)
    op = aten.mm.default if call.bias is None else aten.addmm.default
    node = Node(op, args, {}, (), call.node.where)
    result = Value(b.fresh_name(), infer(op, tuple(arg.spec for arg in args), {}), node)
    node.outputs = (result,)
    b.nodes.append(node)
    n, _, *pixels = call.out.spec.shape
    image = b.reshape(result, (n, *pixels, outputs))
    call.out.producer = Node(PRIMS["permute"], (image, (0, 3, 1, 2)), {}, (call.out,), b.line)
    b.nodes.append(call.out.producer)
