"""Have products in half precision write float32 where that leaves the program: gradients of float32
weights under autocast.

    m: bf16[768, 64] = aten.mm.default(g, x)        y: f32[768, 64] = aten.mm.dtype(g, x, float32)
    y: f32[768, 64] = prims.cast(m, float32)    ->  return (y,)
    return (y,)

The library sums in float32 in any case; it rounds once less, and no kernel widens the result. Where
kernels of our own read it they widen what they read for nothing, and the product stays narrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import primitives as prims
from flambeau_prims.graph import Node

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph, Value

_MM = torch.ops.aten.mm.default
_WIDE_MM: Any = getattr(torch.ops.aten.mm, "dtype", None)
"""None before torch 2.8."""
_HALVES = (torch.bfloat16, torch.float16)


def widen_gradients(graph: Graph) -> Graph:
    """Rewrite such products of `graph`, in place."""
    if _WIDE_MM is None or not any(node.op is _MM for node in graph.nodes):
        return graph
    users = graph.users()
    kept = set(graph.live_at_exit())
    left_out: set[Node] = set()
    for node in graph.nodes:
        calls = _product_and_views(node, users, kept)
        if calls is not None:
            node.op, node.args = _WIDE_MM, (*calls[-1].args, torch.float32)
            node.kwargs = {}
            left_out.update(calls)
    graph.nodes = [node for node in graph.nodes if node not in left_out]
    return graph


def _product_and_views(
    node: Node, users: dict[Value, list[Node]], kept: set[Value]
) -> list[Node] | None:
    """The calls behind a cast to float32 that leaves the program, back to a product on a GPU, if
    nothing else reads their results: transpositions that give the product itself.
    """
    if node.op is not prims.cast:
        return None
    (wide,) = node.outputs
    if wide is None or wide not in kept or users[wide] or wide.spec.dtype is not torch.float32:
        return None
    value: Value = node.args[0]
    calls: list[Node] = []
    while True:
        call = value.producer
        if call is None or len(users[value]) != 1 or value in kept:
            return None
        calls.append(call)
        if call.op is _MM:
            break
        if call.op is not prims.permute or tuple(call.args[1]) != (1, 0):
            return None
        value = call.args[0]
    spec = value.spec
    fits = (
        spec.device.type == "cuda"
        and spec.dtype in _HALVES
        and not calls[-1].kwargs
        and len(calls) % 2 == 1
        and spec.stride == wide.spec.stride
    )
    return calls if fits else None
