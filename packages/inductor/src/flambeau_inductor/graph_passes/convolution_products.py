"""Multiply few pixels by large weights as matrices, on a CPU.

    x: f32[1, 512, 7, 7] channels-last;  w: f32[512, 512, 3, 3]
    y = aten.convolution.default(x, w, None, [1, 1], [1, 1], ...)
    ->  p: f32[1, 9, 9, 512] = prims.pad(x as (n, h, w, c))
        q: f32[49, 4608] = prims.reshape(windows of p as (n, h, w, c, kernel's h, kernel's w))
        m: f32[49, 512] = aten.mm.default(q, w as (4608, 512))
        y = m as (n, c, h, w)

oneDNN's convolutions copy weights into an order of their own in every call, by one number after the
other. For few pixels that takes longer than the convolution. A matrix product reads weights as they
lie. Weights that are computed once (`freezing`) are in oneDNN's order before this pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
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


@dataclass(frozen=True, slots=True)
class _Convolution:
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
    def is_plain(self) -> bool:
        """Whether each pixel is computed from one."""
        return self.weight.spec.shape[2:] == (1, 1) and self.padding == (0, 0)


def _matched(node: Node) -> _Convolution | None:
    """The convolution that a node is, if a product computes it sooner."""
    if node.op is not aten.convolution.default or node.kwargs:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    (out,) = node.outputs
    if out is None or transposed or groups != 1 or x.spec.ndim != 4:
        return None
    if x.spec.device.type != "cpu" or x.spec.dtype is not torch.float32:
        return None
    sizes = [*x.spec.shape, *weight.spec.shape, *stride, *padding, *dilation]
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or 0 in out.spec.shape:
        return None
    if not is_channels_last(x.spec) or not (
        is_contiguous(weight.spec) or is_channels_last(weight.spec)
    ):
        return None
    if torch._C._get_fp32_precision_getter("mkldnn", "matmul") not in ("none", "ieee"):
        return None  # of products, not of convolutions
    call = _Convolution(node, x, weight, bias, out, _pair(stride), _pair(padding), _pair(dilation))
    _, channels, height, width = out.spec.shape
    if out.spec.stride != (height * width * channels, 1, width * channels, channels):
        return None
    return call if _is_worth_it(call) else None


def _pair(sizes: Any) -> tuple[int, int]:
    first, *rest = sizes
    return first, rest[0] if rest else first


def _is_worth_it(call: _Convolution) -> bool:
    outputs, *depth = call.weight.spec.shape
    if outputs * prod(depth) < FEWEST_WEIGHTS:
        return False
    # Windows of one pixel need no copies of pixels.
    most = max(outputs, depth[0]) if call.is_plain else outputs
    return LEAST_SHARE * call.pixels <= most


def _multiply(b: Builder, call: _Convolution) -> None:
    """Append the product, and a view of it in place of the convolution's result."""
    b.line = call.node.where
    outputs, channels, *kernel = call.weight.spec.shape
    depth = channels * prod(kernel)
    weight = call.weight
    if is_contiguous(weight.spec):
        order = (0, 1, 2, 3, 4, 5)
    else:
        weight, order = b.permute(weight, (0, 2, 3, 1)), (0, 1, 2, 4, 5, 3)
    windows = b.permute(_windows(b, call), order)
    rows = b.reshape(windows, (call.pixels, depth))
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


def _windows(b: Builder, call: _Convolution) -> Value:
    """(n, h, w, channels, kernel's h, kernel's w): what each pixel of the result is computed from,
    a view of the padded image.
    """
    image = b.permute(call.x, (0, 2, 3, 1))
    if any(call.padding):
        margins = (0, *call.padding, 0)
        image = b.pad(image, margins, margins, 0.0)
    n, _, *pixels = call.out.spec.shape
    step_n, *steps, step_c = image.spec.stride
    moves = [step * size for step, size in zip(steps, call.stride, strict=True)]
    taps = [step * size for step, size in zip(steps, call.dilation, strict=True)]
    shape = (n, *pixels, image.spec.shape[3], *call.weight.spec.shape[2:])
    return b.as_strided(image, shape, (step_n, *moves, step_c, *taps), image.spec.offset)
