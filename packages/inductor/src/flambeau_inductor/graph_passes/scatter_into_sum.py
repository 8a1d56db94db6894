"""Add what is scattered into zeros to the other summand where it belongs.

    z: f32[1000, 8] = prims.full((1000, 8), 0.0)
    g: f32[1000, 8] = prims.index_put(z, (i,), v, True)
    s: f32[1000, 8] = prims.add(y, g)
->  s: f32[1000, 8] = prims.index_put(y, (i,), v, True)

The gradient of an embedding is scattered into zeros as large as the table; where the table has
another gradient (of the words' logits, of a second embedding), the zeros, and the sum of both, need
not be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.graph_passes.patterns import operands_of
from flambeau_prims.graph import Value
from flambeau_prims.primitives import PRIMS

if TYPE_CHECKING:
    from collections.abc import Collection

    from flambeau_prims.graph import Graph, Node


def scatter_into_sums(graph: Graph) -> Graph:
    """Rewrite the sums of `graph`, in place."""
    scatters = {node.outputs[0] for node in graph.nodes if _adds_to_zeros(node)}
    if not scatters:
        return graph
    users = graph.users()
    read_once = {value for value in scatters if value is not None and len(users[value]) == 1}
    read_once.difference_update(graph.live_at_exit())
    moved = {
        scatter for node in graph.nodes if (scatter := _move_into(node, read_once)) is not None
    }
    graph.nodes = [node for node in graph.nodes if node not in moved]
    return graph


def _adds_to_zeros(node: Node) -> bool:
    if node.op is not PRIMS["index_put"] or node.args[3] is not True:
        return False
    zeros = operands_of(node.args[0], "full")
    return zeros is not None and zeros[1] == 0


def _move_into(node: Node, scatters: Collection[Value]) -> Node | None:
    """Make a sum the scatter into its other summand; return the scatter that it replaces."""
    if node.op is not PRIMS["add"]:
        return None
    for scattered, other in (node.args, node.args[::-1]):
        if scattered in scatters and scattered is not other and _alike(scattered, other):
            scatter: Node = scattered.producer
            node.op, node.args = scatter.op, (other, *scatter.args[1:])
            return scatter
    return None


def _alike(x: Value, y: Any) -> bool:
    return isinstance(y, Value) and (
        (x.spec.shape, x.spec.dtype, x.spec.device) == (y.spec.shape, y.spec.dtype, y.spec.device)
    )
