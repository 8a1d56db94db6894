"""Give outputs, and what is written to inputs, separate memory where eager does.

    y = aten.sin(x)
    return (y, y)               ->     y = aten.sin(x)
                                       y2 = aten.clone(y)
                                       return (y, y2)

Functionalization and merging may leave outputs that eager makes apart as one Value, as views of one
memory, or as an input itself. `owners[i]` says whose memory output i is in eager: outputs with
equal owners may share; an input Value as owner means the output is (a view of) that input. Outputs
beyond `owners` are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.functionalize import dense_order
from flambeau_autograd.operators import memory_of
from flambeau_autograd.substitution import begin_with_operand
from flambeau_prims import primitives as prims
from flambeau_prims import sizes
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


def unalias_outputs(
    graph: Graph, owners: Sequence[Any], offsets: Sequence[Size], primitive: bool
) -> Graph:
    """Copy outputs of `graph`, in place, that share memory with an input or an output of another
    owner.

    `offsets`: where the outputs begin in their memory in eager. `primitive`: the graph is one of
    primitives, so copy by `prims.clone`, which keeps any strides.
    """
    holder: dict[Value, Any] = {value: value for value in graph.inputs if isinstance(value, Value)}
    copies: dict[tuple[Value, int], Value] = {}
    for position, owner in enumerate(owners):
        out = graph.outputs[position]
        if not isinstance(out, Value):
            continue
        memory = memory_of(out)
        if holder.setdefault(memory, owner) != owner:
            # A copy of a view begins at 0, a view of a copy need not.
            within = offsets[position] == out.spec.offset != 0
            copy = _separated(graph.nodes, out, id(owner), copies, primitive, within)
            graph.outputs[position] = copy
            holder[memory_of(copy)] = owner
    _separate_writes(graph, primitive)
    return graph


def _separated(
    nodes: list[Node],
    out: Value,
    owner: int,
    copies: dict[tuple[Value, int], Value],
    primitive: bool,
    within: bool = False,
) -> Value:
    """The owner's copy of `out`; of a view with gaps, or one that lies `within` other elements, the
    viewed memory is copied.
    """
    known = copies.get((out, owner))
    if known is None:
        producer = out.producer
        if (
            (dense_order(out.spec) is not None and not (within and memory_of(out) is not out))
            or producer is None
            or dense_order(memory_of(out).spec) is None
        ):
            known = cloned(nodes, out, primitive, gaps=primitive)
        else:
            base = producer.operands()[0]
            own = _separated(nodes, base, owner, copies, primitive, within)
            args, kwargs = (
                map_values(a, lambda value: own if value is base else value)
                for a in (producer.args, producer.kwargs)
            )
            node = Node(producer.op, args, kwargs, (), producer.where)
            result = [
                None
                if value is None
                else Value(f"{value.name}_again{len(nodes)}", value.spec, node)
                for value in producer.outputs
            ]
            node.outputs = tuple(result)
            begin_with_operand(node)
            nodes.append(node)
            known = result[producer.outputs.index(out)]
            assert known is not None
        copies[out, owner] = known
    return known


def _separate_writes(graph: Graph, primitive: bool) -> None:
    """Copy what is written to an input if it views another written input (a swap)."""
    written = {target for target, _ in graph.writes}
    graph.writes = [
        (target, cloned(graph.nodes, value, primitive) if memory_of(value) in written else value)
        for target, value in graph.writes
    ]


def cloned(nodes: list[Node], value: Value, primitive: bool, gaps: bool = False) -> Value:
    """A copy of `value` in separate memory, same strides if dense or empty; appended to `nodes`.

    With `gaps` also if there are gaps between its elements, as in results of `slice_scatter`.
    """
    spec = value.spec
    overlaps = any(sizes.known_eq(step, 0) for step in spec.stride)
    empty = any(sizes.known_eq(size, 0) for size in spec.shape)
    if not empty and dense_order(spec) is None and (overlaps or not gaps):
        stride = None
        kwargs = {"memory_format": torch.contiguous_format}
    else:
        stride = spec.stride
        kwargs = {"memory_format": torch.preserve_format}
    node = (
        Node(prims.clone, (value,), {}) if primitive else Node(aten.clone.default, (value,), kwargs)
    )
    copy = Value(
        f"{value.name}_copy{len(nodes)}",
        Spec.of(spec.shape, stride=stride, dtype=spec.dtype, device=spec.device),
        node,
    )
    node.outputs = (copy,)
    nodes.append(node)
    return copy
