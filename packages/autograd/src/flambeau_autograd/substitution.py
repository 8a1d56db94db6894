"""Rebuild a graph with some Values replaced by others: the step that passes which merge or fold
calls share.

    b = prims.clone(a)             (a has offset 4, b none)
    c = prims.reshape(b, (2, 2))     ->     c = prims.reshape(a, (2, 2))     (c has offset 4 now)

A view's Spec describes the memory of its operand, so a view of a Value that gave way to one
elsewhere in memory begins elsewhere, too.
"""

from __future__ import annotations

from typing import Any

from flambeau_autograd.operators import moves_nothing
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.primitives import Prim
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec


class Substitution:
    """The replacements of one pass, which takes the nodes in order."""

    def __init__(self) -> None:
        self._replaced: dict[Value, Value] = {}
        # The Values that no longer begin where the Specs of their views say.
        self._moved: set[Value] = set()

    def replace(self, old: Value, new: Value) -> None:
        """Let `new` stand for `old` from now on: same elements, same layout."""
        self._replaced[old] = new
        if old.spec.offset is not new.spec.offset and old.spec.offset != new.spec.offset:
            self._moved.add(new)

    def apply(self, node: Node) -> None:
        """Let `node` read the replacements, in place."""
        if not self._replaced.keys().isdisjoint(node.operands()):
            node.args = map_values(node.args, self._resolve)
            if node.kwargs:
                node.kwargs = map_values(node.kwargs, self._resolve)
        if self._moved and moves_nothing(node.op) and node.operands()[0] in self._moved:
            self._moved.update(begin_with_operand(node))

    def apply_to_exits(self, graph: Graph) -> None:
        """Let the outputs and writes of `graph` refer to the replacements, in place."""
        graph.outputs = [
            self._resolve(out) if isinstance(out, Value) else out for out in graph.outputs
        ]
        graph.writes = [(target, self._resolve(value)) for target, value in graph.writes]

    def _resolve(self, value: Value) -> Value:
        while (other := self._replaced.get(value)) is not None:
            value = other
        return value


def begin_with_operand(node: Node) -> list[Value]:
    """Set the offsets of a view's results by its operand's Spec; returns the moved results."""
    moved = []
    for out, spec in zip(node.outputs, _inferred(node), strict=True):
        if out is not None and spec is not None and out.spec.offset != spec.offset:
            out.spec = out.spec.replace(
                shape=out.spec.shape, stride=out.spec.stride, offset=spec.offset
            )
            moved.append(out)
    return moved


def _inferred(node: Node) -> tuple[Spec | None, ...]:
    """The Specs of a view's results, by its operator's rule."""
    args, kwargs = _specs(tuple(node.args)), {key: _specs(arg) for key, arg in node.kwargs.items()}
    specs = node.op.infer(*args) if isinstance(node.op, Prim) else infer(node.op, args, kwargs)
    return (specs,) if isinstance(specs, Spec) else tuple(specs)


def _specs(arg: Any) -> Any:
    """An argument as rules take it: Specs for Values, tuples for lists."""
    if isinstance(arg, Value):
        return arg.spec
    return tuple([_specs(item) for item in arg]) if isinstance(arg, (tuple, list)) else arg
