"""Give outputs memory of their own where eager does.

    y = aten.sin(x)
    return (y, y)               ->     y = aten.sin(x)
                                       y2 = aten.clone(y)
                                       return (y, y2)

Functionalization and merging may leave outputs that eager makes apart as one Value, as views of one memory, or as
an input itself.  `owners[i]` says whose memory output i is in eager: outputs with equal owners may share; an input Value as owner
means the output is (a view of) that input.  Outputs beyond `owners` are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value

from flambeau_autograd.operators import memory_of

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def separate_outputs(graph: Graph, owners: Sequence[Any], primitive: bool) -> Graph:
    """Copy outputs of `graph`, in place, that share memory with an input or an output of another owner.

    `primitive`: the graph is one of primitives, so copy by `prims.clone`, which keeps any strides.
    """
    holder: dict[Value, Any] = {value: value for value in graph.inputs if isinstance(value, Value)}
    copies: dict[tuple[Value, int], Value] = {}
    for position, owner in enumerate(owners):
        out = graph.outputs[position]
        if not isinstance(out, Value):
            continue
        memory = memory_of(out)
        if holder.setdefault(memory, owner) != owner:
            copy = copies.get((out, id(owner)))
            if copy is None:
                copy = copies[out, id(owner)] = _clone(graph, out, primitive)
            graph.outputs[position] = copy
            holder[copy] = owner
    return graph


def _clone(graph: Graph, value: Value, primitive: bool) -> Value:
    if primitive:
        node = Node(prims.clone, (value,), {})
    else:
        node = Node(aten.clone.default, (value,), {"memory_format": torch.preserve_format})
    copy = Value(f"{value.name}_copy", value.spec.replace(stride=value.spec.stride, offset=0), node)
    node.outputs = (copy,)
    graph.nodes.append(node)
    return copy
