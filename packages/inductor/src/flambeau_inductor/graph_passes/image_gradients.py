"""Compute gradients of images apart from those of weights, where the former are convolutions that
are worth transforming (`flambeau_prims.winograd`).

    gx, gw, gb = aten.convolution_backward.default(g, x, w, ..., [True, True, True])
    ->  gx = aten.convolution.default(g, w, None, ..., transposed=True, ...)
        _, gw, gb = aten.convolution_backward.default(g, x, w, ..., [False, True, True])

The library computes both by separate kernels in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.graph import Node
from flambeau_prims.winograd import has_winograd_gradient

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

aten = torch.ops.aten


def separate_image_gradients(graph: Graph) -> Graph:
    """Rewrite such backward passes of convolutions of `graph`, in place."""
    if not any(has_winograd_gradient(node) for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        if has_winograd_gradient(node):
            nodes.append(_image_gradient(node))
        if any(out is not None for out in node.outputs) or not node.outputs:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _image_gradient(node: Node) -> Node:
    """The convolution that makes the image's gradient; `node` makes it no more."""
    gradient, _, weight, _, stride, padding, dilation, transposed, zeros, groups, mask = node.args
    out = node.outputs[0]
    assert out is not None
    settings = (stride, padding, dilation, not transposed, zeros, groups)
    out.producer = Node(
        aten.convolution.default, (gradient, weight, None, *settings), {}, (out,), node.where
    )
    node.outputs = (None, *node.outputs[1:])
    node.args = (*node.args[:-1], [False, *mask[1:]])
    return out.producer
