"""Replace a sum along a dim where one element at most is not 0 by that element.

    places: i64[8, 1000] = iota(1000), repeated           c: bool[8] = prims.ge(t, 0)
    targets: i64[8, 1000] = t: i64[8], repeated           d: bool[8] = prims.lt(t, 1000)
    hit = prims.eq(places, targets)                 ->    e: bool[8] = prims.bitwise_and(c, d)
    x = prims.where(hit, v repeated, 0.0)                 f: f32[8] = prims.where(e, v, 0.0)
    s: f32[8] = prims.sum(x, (1,))                        s: f32[8] = prims.add(f, 0.0)

The gradient of a cross entropy has such a sum: without it, an element depends on no other, and the
row is not read twice. A sum begins with 0.0, so that -0.0 is not its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from flambeau_inductor.graph_passes.patterns import operands_of, repeated_from
from flambeau_inductor.split_reduction import reduced_dims
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import PRIMS
from flambeau_prims.sizes import known_eq

if TYPE_CHECKING:
    import torch

    from flambeau_prims.graph import Graph


@dataclass(frozen=True)
class _Choice:
    """An operand that is `value` where the dim's place is `target` and `conditions` hold, then cast
    to each of `casts`; else 0. All of these have no dim that is summed.
    """

    value: Value
    target: Value
    conditions: tuple[Value, ...]
    casts: tuple[torch.dtype, ...]


def collapse_one_hot_sums(graph: Graph) -> Graph:
    """Rewrite the sums of `graph`, in place."""
    choices = {
        node: choice
        for node in graph.nodes
        if node.op is PRIMS["sum"] and (choice := _choice(node)) is not None
    }
    if not choices:
        return graph
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if node in choices:
            node = _collapsed(builder, node, choices[node])
        nodes.append(node)
    graph.nodes = nodes
    return graph


def _collapsed(b: Builder, node: Node, choice: _Choice) -> Node:
    """The node that makes the result of a sum."""
    b.line = node.where
    (out,) = node.outputs
    assert out is not None
    x, (dim,) = node.args[0], reduced_dims(node)
    shape = (*x.spec.shape[:dim], *x.spec.shape[dim + 1 :])
    inside = (b.ge(choice.target, 0), b.lt(choice.target, x.spec.shape[dim]))
    hit = reduce(b.bitwise_and, [b.expand(one, shape) for one in (*inside, *choice.conditions)])
    value = b.where(hit, b.expand(choice.value, shape), 0.0)
    for dtype in choice.casts:
        value = b.cast(value, dtype)
    result = Node(PRIMS["add"], (value, 0.0), {}, node.outputs, node.where)
    out.producer = result
    return result


def _choice(node: Node) -> _Choice | None:
    """How the operand of a sum along one dim chooses one of its places, if it does."""
    dims = reduced_dims(node)
    x = node.args[0]
    if len(dims) != 1 or not x.spec.dtype.is_floating_point:
        return None
    casts: list[torch.dtype] = []
    chosen = x
    while (cast := operands_of(chosen, "cast")) is not None:
        casts.insert(0, cast[1])
        chosen = cast[0]
    selected = operands_of(chosen, "where")
    if selected is None or isinstance(selected[2], Value) or selected[2] != 0:
        return None
    value = repeated_from(selected[1], chosen, dims)
    target, conditions = None, []
    for term in _terms(selected[0]):
        place = None if target is not None else _target(term, chosen, dims)
        if place is not None:
            target = place
            continue
        condition = repeated_from(term, chosen, dims)
        if condition is None:
            return None
        conditions.append(condition)
    if value is None or target is None:
        return None
    return _Choice(value, target, tuple(conditions), tuple(casts))


def _terms(condition: Any) -> list[Any]:
    """What a condition is the conjunction of."""
    both = operands_of(condition, "bitwise_and")
    return [condition] if both is None else [*_terms(both[0]), *_terms(both[1])]


def _target(term: Any, x: Value, dims: tuple[int, ...]) -> Value | None:
    """What the numbers of the places along the dim are compared with."""
    compared = operands_of(term, "eq")
    if compared is None:
        return None
    others = tuple(d for d in range(x.spec.ndim) if d not in dims)
    for places, target in (compared, compared[::-1]):
        numbers = operands_of(repeated_from(places, x, others), "iota")
        if numbers is None or numbers[1:3] != (0, 1):
            continue
        if known_eq(numbers[0], x.spec.shape[dims[0]]):
            return repeated_from(target, x, dims)
    return None
