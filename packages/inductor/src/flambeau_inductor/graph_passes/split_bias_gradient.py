"""Compute the gradient of a convolution's bias in kernels of our own.

    gx, gw, gb = aten.convolution_backward.default(g, x, w, ..., [True, True, True])
    ->  gx, gw, _ = aten.convolution_backward.default(g, x, w, ..., [True, True, False])
        gb: f32[64] = prims.sum(g, (0, 2, 3))

On a GPU the library sums in a separate kernel of general purpose; ours shares a kernel with what
made `g`, or reads it at full bandwidth. On a CPU the library sums while it computes `gw`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import Builder, compute_dtype
from flambeau_prims.convolution_bias import DTYPES
from flambeau_prims.graph import Node
from flambeau_prims.primitives import PRIMS

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

_BACKWARD = torch.ops.aten.convolution_backward.default
_MASK, _BIAS = 10, 2
"""Which argument says what is computed, and which result is the bias's gradient."""


def split_bias_gradient(graph: Graph) -> Graph:
    """Rewrite the backward passes of convolutions of `graph`, in place."""
    if not any(_has_bias(node) for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if _has_bias(node):
            _split(builder, node)
        else:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _has_bias(node: Node) -> bool:
    if node.op is not _BACKWARD or node.kwargs:
        return False
    out = node.outputs[_BIAS]
    return out is not None and out.spec.device.type == "cuda" and out.spec.dtype in DTYPES


def _split(builder: Builder, node: Node) -> None:
    out, tangent = node.outputs[_BIAS], node.args[0]
    assert out is not None
    builder.line = node.where
    if any(other is not None for other in node.outputs[:_BIAS]):
        mask = [*node.args[_MASK][:_BIAS], False]
        node.args = (*node.args[:_MASK], mask)
        node.outputs = (*node.outputs[:_BIAS], None)
        builder.nodes.append(node)
    dims = tuple(dim for dim in range(tangent.spec.ndim) if dim != 1)
    dtype, wide = out.spec.dtype, compute_dtype(out.spec.dtype)
    if wide is dtype:
        last = Node(PRIMS["sum"], (tangent, dims), {}, (out,), node.where)
    else:
        total = builder.sum(builder.cast(tangent, wide), dims)
        last = Node(PRIMS["cast"], (total, dtype), {}, (out,), node.where)
    out.producer = last
    builder.nodes.append(last)
