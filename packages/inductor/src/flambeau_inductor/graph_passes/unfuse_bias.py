"""Take the bias out of a matrix product or convolution whose readers are kernels of our own.

    y: f32[8, 64] = aten.addmm.default(b, x, w)        m: f32[8, 64] = aten.mm.default(x, w)
    z = prims.tanh(y)                            ->    y = prims.add(m, b expanded)
                                                       z = prims.tanh(y)

The addition then costs nothing, since it is part of the kernel that reads the product, and the
library chooses freely among its kernels for the product alone (split along k, for example). In half
precision the product is rounded before the addition; the sum that the kernel goes on with is not
(`InductorOptions.elide_cast_pairs`), so there is one rounding as before. Only on a GPU: on a CPU
the libraries add the bias as they write. A product that leaves the graph, or that a library reads,
keeps its bias. A convolution does not: its bias is added by a separate kernel of the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import Builder
from flambeau_prims.convolution_bias import (
    DTYPES,
    add_bias,
    has_separate_bias,
    unfuse_convolution,
)
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import Kind, Prim

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

_ADDMM = torch.ops.aten.addmm.default
_MM = torch.ops.aten.mm.default
_CONVOLUTION = torch.ops.aten.convolution.default
_BIASED = {_ADDMM, _CONVOLUTION}


def unfuse_bias(graph: Graph) -> Graph:
    """Rewrite the products and convolutions of `graph`, in place."""
    if not any(node.op in _BIASED for node in graph.nodes):
        return graph
    users = graph.users()
    kept = set(graph.live_at_exit())
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in users))
    for node in graph.nodes:
        if has_separate_bias(node):
            unfuse_convolution(builder, node)
        elif node.op is _ADDMM and _is_plain(node) and _is_read_by_kernels(node, users, kept):
            _unfuse(builder, node)
        else:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def _is_plain(node: Node) -> bool:
    bias, (out,) = node.args[0], node.outputs
    return (
        out is not None
        and not node.kwargs
        and out.spec.device.type == "cuda"
        and out.spec.dtype in DTYPES
        and bias.spec.shape == out.spec.shape[1:]
    )


def _is_read_by_kernels(node: Node, users: dict[Value, list[Node]], kept: set[Value]) -> bool:
    """Whether all readers of the result, through views, are primitives that kernels compute."""
    pending = [value for value in node.outputs if value is not None]
    while pending:
        value = pending.pop()
        if value in kept or not users[value]:
            return False
        for user in users[value]:
            if not isinstance(user.op, Prim):
                return False
            if user.op.kind is Kind.VIEW:
                pending += [out for out in user.outputs if out is not None]
    return True


def _unfuse(builder: Builder, node: Node) -> None:
    bias, x, w = node.args
    add_bias(builder, node, Node(_MM, (x, w), {}, (), node.where), bias, bias.spec.shape)
