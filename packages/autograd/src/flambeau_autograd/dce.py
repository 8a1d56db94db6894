"""Drop dead calls: those whose results nothing reads.

    y = aten.sin(x)
    z = aten.cos(x)          ->     z = aten.cos(x)
    return (z,)                     return (z,)

Calls that draw random numbers stay, since they advance the generator as eager does; so do those
that check the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_autograd.operators import happens_once

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph, Node


def drop_dead_calls(graph: Graph) -> Graph:
    """Remove dead calls from `graph`, in place."""
    live = set(graph.live_at_exit())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not live.isdisjoint(node.outputs) or happens_once(node):
            live.update(node.operands())
            kept.append(node)
    graph.nodes = kept[::-1]
    return graph
