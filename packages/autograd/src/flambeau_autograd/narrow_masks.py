"""Narrow dropout masks: let the backward keep one byte an element of them instead of four.

    m: f32[8] = aten.bernoulli.p(e, 0.9)             m: f32[8] = aten.bernoulli.p(e, 0.9)
    y = prims.mul(x, m)                      ->      b: bool[8] = prims.cast(m, torch.bool)
                                                     n: f32[8] = prims.cast(b, torch.float32)
                                                     y = prims.mul(x, n)

A mask holds zeros and ones, so the casts lose nothing; the minimum cut then finds the boolean, a
quarter of the size, to save. Works on graphs of primitives, before the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_autograd.substitution import Substitution
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Node, Value

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph

_MASKS = {
    torch.ops.aten.bernoulli.p,
    torch.ops.aten.bernoulli.default,
    torch.ops.aten.bernoulli.Tensor,
}


def narrow_masks(graph: Graph) -> Graph:
    """Insert the casts after each draw of a floating-point mask in `graph`, in place."""
    replaced = Substitution()
    nodes: list[Node] = []
    for node in graph.nodes:
        replaced.apply(node)
        nodes.append(node)
        if node.op in _MASKS:
            (mask,) = node.outputs
            assert mask is not None
            if mask.spec.dtype.is_floating_point:
                narrow = _cast(nodes, mask, torch.bool, "bits")
                replaced.replace(mask, _cast(nodes, narrow, mask.spec.dtype, "wide"))
    graph.nodes = nodes
    replaced.apply_to_exits(graph)
    return graph


def _cast(nodes: list[Node], value: Value, dtype: torch.dtype, suffix: str) -> Value:
    node = Node(prims.cast, (value, dtype), {})
    result = Value(
        f"{value.name}_{suffix}", value.spec.replace(stride=value.spec.stride, dtype=dtype), node
    )
    node.outputs = (result,)
    nodes.append(node)
    return result
