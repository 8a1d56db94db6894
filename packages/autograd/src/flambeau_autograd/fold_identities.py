"""Fold calls that give back their operand: detach, and copies or views that change nothing.

    b = aten.detach(a)
    c = aten.view(b, [4, 4])          (a has shape [4, 4] already)
    d = aten.clone(c)                 (in the layout c has)
    return (d + 1,)                                                  ->     return (a + 1,)

A copy is a fold of this pass only because nothing in the graph mutates; `unalias_outputs` copies
where the caller must get separate memory. A copy that as_strided or its like reads stays: they
read memory, not values (`operator_facts.READS_MEMORY`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.functionalize import same_layout
from flambeau_autograd.operators import memory_of, moves_nothing
from flambeau_autograd.substitution import Substitution
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.operator_facts import READS_MEMORY
from flambeau_prims.per_operator import per_operator

if TYPE_CHECKING:
    from flambeau_prims.spec import Spec

aten = torch.ops.aten

_COPIES = {aten.clone.default, aten._to_copy.default, prims.clone, prims.cast, prims.to_device}


@per_operator
def _reads_memory(op: Any) -> bool:
    return op is prims.as_strided or op in READS_MEMORY


def fold_identities(graph: Graph) -> Graph:
    """Fold calls that change nothing in `graph`, in place."""
    pinned = {memory_of(node.operands()[0]) for node in graph.nodes if _reads_memory(node.op)}
    returned = {out for out in graph.outputs if isinstance(out, Value)}
    replaced = Substitution()
    kept: list[Node] = []
    for node in graph.nodes:
        replaced.apply(node)
        operand = _operand_given_back(node, returned) if _may_give_back(node.op) else None
        if operand is None or (node.outputs[0] in pinned and node.op in _COPIES):
            kept.append(node)
        else:
            out = node.outputs[0]
            assert out is not None
            replaced.replace(out, operand)
    graph.nodes = kept
    replaced.apply_to_exits(graph)
    return graph


@per_operator
def _may_give_back(op: Any) -> bool:
    return op in _COPIES or moves_nothing(op)


def _operand_given_back(node: Node, returned: set[Value]) -> Value | None:
    if (
        len(node.outputs) != 1
        or not node.args
        or not isinstance(node.args[0], Value)
        or node.outputs[0] is None
    ):
        return None
    if _moves_elements(node.op) and not _keeps_order(node):
        return None
    operand, result = node.args[0], node.outputs[0]
    exact = moves_nothing(node.op) or result in returned
    return operand if _same(operand.spec, result.spec, exact=exact) else None


def _same(one: Spec, other: Spec, exact: bool) -> bool:
    if one is other:
        return True
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    if exact:  # the strides of dims of size 1, too, which the caller sees
        return one.stride == other.stride and one.offset == other.offset
    return same_layout(one, other)


_MOVES_ELEMENTS = {
    aten.permute.default, aten.t.default, aten.transpose.int, aten.as_strided.default,
    aten.view.dtype, aten._conj.default, aten._neg_view.default, prims.permute, prims.as_strided,
}  # fmt: skip
"""Views that move elements though their Spec may equal the operand's (1 x 1, a conjugate)."""


@per_operator
def _moves_elements(op: Any) -> bool:
    return op in _MOVES_ELEMENTS


def _keeps_order(node: Node) -> bool:
    if node.op not in (aten.permute.default, prims.permute):
        return False
    dims: Any = node.args[1]
    return list(dims) == list(range(len(dims)))
