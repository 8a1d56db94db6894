"""Add the bias of a convolution in a kernel of our own.

    y: f32[2, 8, 9, 9] = aten.convolution.default(x, w, b, ...)
      ->  c = aten.convolution.default(x, w, None, ...)
          y = prims.add(c, b expanded)

On a GPU the library adds it in a separate kernel in any case. As a primitive the addition is part
of the kernels that read `y`, and a backward may keep `c` and add again. On a CPU the library adds
as it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import Builder, compute_dtype
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import PRIMS

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph
    from flambeau_prims.spec import Size

_CONVOLUTION = torch.ops.aten.convolution.default
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unfuse_convolution_biases(graph: Graph) -> Graph:
    """Rewrite the convolutions of `graph`, in place."""
    if not any(has_separate_bias(node) for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if has_separate_bias(node):
            unfuse_convolution(builder, node)
        else:
            nodes.append(node)
    graph.nodes = nodes
    return graph


def has_separate_bias(node: Node) -> bool:
    """Whether a node is a convolution whose bias the library adds in a separate kernel."""
    if node.op is not _CONVOLUTION or node.kwargs or node.args[2] is None:
        return False
    (out,) = node.outputs
    return out is not None and out.spec.device.type == "cuda" and out.spec.dtype in DTYPES


def unfuse_convolution(builder: Builder, node: Node) -> None:
    """Append the convolution without its bias, and the addition."""
    (out,) = node.outputs
    assert out is not None
    x, w, bias, *rest = node.args
    call = Node(node.op, (x, w, None, *rest), {}, (), node.where)
    add_bias(builder, node, call, bias, (out.spec.shape[1], *[1] * (out.spec.ndim - 2)))


def add_bias(builder: Builder, node: Node, call: Node, bias: Value, row: tuple[Size, ...]) -> None:
    """Append `call`, and what makes the result of `node` of it: the sum with the bias, of the shape
    `row`.
    """
    (out,) = node.outputs
    assert out is not None
    product = Value(builder.fresh_name(), out.spec, call)
    call.outputs = (product,)
    builder.nodes.append(call)
    builder.line = node.where
    dtype, wide = out.spec.dtype, compute_dtype(out.spec.dtype)
    spread = builder.unsqueeze(builder.reshape(builder.cast(bias, wide), row), 0)
    spread = builder.expand(spread, out.spec.shape)
    if wide is dtype:
        last = Node(PRIMS["add"], (product, spread), {}, (out,), node.where)
    else:
        total = builder.add(builder.cast(product, wide), spread)
        total.spec = total.spec.replace(stride=out.spec.stride)
        last = Node(PRIMS["cast"], (total, dtype), {}, (out,), node.where)
    out.producer = last
    builder.nodes.append(last)
