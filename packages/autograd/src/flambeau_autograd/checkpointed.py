"""What of a joint graph must not be kept for the backward: the inside of the regions that the
program checkpointed.

    [region 1]  a = mm(x, w); b = tanh(a)       b is read outside: it may be kept
                y = sum(b)                      a must not: the backward recomputes it from x, w

Random draws are the exception: they are kept, and so are what the region's forward drew.

A region with a negative number gathers parameters that are freed behind the forward: all that it
gives is made again, collectives included, and nobody keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_autograd.operators import happens_once, memory_of
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from flambeau_prims.graph import Graph, Node


def inside_regions(
    graph: Graph,
    forward_nodes: Collection[Node],
    after_tangents: set[Value],
    results: Iterable[object],
) -> set[Value]:
    """The Values free of tangents that only their region or only the backward reads."""
    if not any(node.region for node in graph.nodes):
        return set()
    forward = set(forward_nodes)
    returned = {out for out in results if isinstance(out, Value)}
    returned.update(value for _, value in graph.writes)
    users = graph.users()
    inside: set[Value] = set()
    whole: set[Value] = set()  # gathered parameters, and views of them
    for node in graph.nodes:
        freed = node.region < 0
        if happens_once(node) and not freed:
            continue
        # Formulas of the backward that read no tangent, as the cosine of a sine's argument does.
        backward_only = node not in forward and any(value in inside for value in node.operands())
        for out in node.outputs:
            if out is None or out in returned or out in after_tangents:
                continue
            if freed or memory_of(out) in whole:
                whole.add(out)
                inside.add(out)
                continue
            readers = [user for user in users[out] if user in forward]
            if backward_only or (node.region and all(r.region == node.region for r in readers)):
                inside.add(out)
    return inside
