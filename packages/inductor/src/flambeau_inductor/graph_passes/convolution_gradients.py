"""Compute gradients of convolutions apart from each other, on a CPU, where some are worth
transforming (`flambeau_prims.winograd`).

    gx, gw, gb = aten.convolution_backward.default(g, x, w, ..., [True, True, True])
    ->  gx = aten.convolution.default(g, w, None, ..., transposed=True, ...)
        _, gw, _ = aten.convolution_backward.default(g, x, w, ..., [False, True, False])
        gb: f32[64] = prims.sum(g, (0, 2, 3))

The library computes the gradients of images and weights by separate kernels in any case. It sums
that of a bias while it computes that of the weights: the sum is separate if it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node
from flambeau_prims.primitives import PRIMS
from flambeau_prims.winograd import has_winograd_gradient, winograd_gradient

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

aten = torch.ops.aten
_IMAGE, _WEIGHT, _BIAS = range(3)


def separate_convolution_gradients(graph: Graph) -> Graph:
    """Rewrite such backward passes of convolutions of `graph`, in place."""
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        transforms_image = has_winograd_gradient(node)
        transforms_weight = winograd_gradient(node, alone=False) is not None
        if transforms_image:
            _image_gradient(nodes, node)
        if transforms_weight:
            _bias_gradient(builder, node)
            if node.outputs[_IMAGE] is not None:
                _weight_gradient(nodes, node)
        if not (transforms_image or transforms_weight) or any(node.outputs):
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _image_gradient(nodes: list[Node], node: Node) -> None:
    """Append the convolution that makes the image's gradient; `node` makes it no more."""
    gradient, _, weight, _, stride, padding, dilation, transposed, zeros, groups, _ = node.args
    out = node.outputs[_IMAGE]
    assert out is not None
    settings = (stride, padding, dilation, not transposed, zeros, groups)
    out.producer = Node(
        aten.convolution.default, (gradient, weight, None, *settings), {}, (out,), node.where
    )
    nodes.append(out.producer)
    _leave_out(node, _IMAGE)


def _weight_gradient(nodes: list[Node], node: Node) -> None:
    """Append a call for the gradient of the weights alone; `node` makes it no more."""
    out = node.outputs[_WEIGHT]
    assert out is not None
    args = (*node.args[:-1], [False, True, False])
    out.producer = Node(node.op, args, {}, (None, out, None), node.where)
    nodes.append(out.producer)
    _leave_out(node, _WEIGHT)


def _bias_gradient(builder: Builder, node: Node) -> None:
    """Append the sum that makes the bias's gradient, if there is one; `node` makes it no more."""
    out = node.outputs[_BIAS]
    if out is not None:
        sum_args = (node.args[0], (0, 2, 3))
        out.producer = Node(PRIMS["sum"], sum_args, {}, (out,), node.where)
        builder.nodes.append(out.producer)
        _leave_out(node, _BIAS)


def _leave_out(node: Node, gradient: int) -> None:
    mask = list(node.args[-1])
    mask[gradient] = False
    node.args = (*node.args[:-1], mask)
    outputs = list(node.outputs)
    outputs[gradient] = None
    node.outputs = tuple(outputs)
