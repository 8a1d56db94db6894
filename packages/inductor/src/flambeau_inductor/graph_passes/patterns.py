"""What made a value, and whether it is read: questions of several passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Value
from flambeau_prims.primitives import PRIMS, Kind, Prim

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph, Node

_PURE = frozenset((Kind.POINTWISE, Kind.REDUCTION, Kind.VIEW))


def drop_unread(graph: Graph) -> None:
    """Drop the pointwise primitives, reductions and views that nothing reads."""
    live = set(graph.live_at_exit())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        pure = isinstance(node.op, Prim) and node.op.kind in _PURE
        if not pure or any(out in live for out in node.outputs):
            live.update(node.operands())
            kept.append(node)
    graph.nodes = kept[::-1]


def operands_of(value: Any, name: str) -> tuple[Any, ...] | None:
    """The operands of the primitive `name` that makes a value; None if another makes it."""
    producer = value.producer if isinstance(value, Value) else None
    return producer.args if producer is not None and producer.op is PRIMS[name] else None


def repeated_from(value: Any, x: Any, dims: tuple[int, ...]) -> Any:
    """What is repeated along `dims` to a value of the shape of x, with its dims in order."""
    if not isinstance(value, Value) or not isinstance(x, Value):
        return None
    steps = []
    while value.producer is not None and value.producer.op in (PRIMS["unsqueeze"], PRIMS["expand"]):
        steps.append(value.producer)
        value = value.producer.args[0]
    places: list[int | None] = [d for d in range(x.spec.ndim) if d not in dims]
    if len(places) != value.spec.ndim:
        return None
    for step in reversed(steps):
        if step.op is PRIMS["unsqueeze"]:
            places.insert(step.args[1], None)
        else:
            places[:0] = [None] * (len(step.args[1]) - len(places))
    expected = [None if d in dims else d for d in range(x.spec.ndim)]
    return value if places == expected else None
