"""Rebuild a graph with some Values replaced by others: the step that passes which merge or fold calls share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.graph import Graph, Node, Value, map_values

if TYPE_CHECKING:
    from collections.abc import Mapping


def resolve(replaced: Mapping[Value, Value], value: Value) -> Value:
    """What stands for `value` after all replacements."""
    while (other := replaced.get(value)) is not None:
        value = other
    return value


def substitute(node: Node, replaced: Mapping[Value, Value]) -> None:
    """Let `node` read the replacements, in place."""
    if any(value in replaced for value in node.operands()):
        node.args = map_values(node.args, lambda value: resolve(replaced, value))
        node.kwargs = map_values(node.kwargs, lambda value: resolve(replaced, value))


def substitute_exits(graph: Graph, replaced: Mapping[Value, Value]) -> None:
    """Let the outputs and writes of `graph` refer to the replacements, in place."""
    graph.outputs = [
        resolve(replaced, out) if isinstance(out, Value) else out for out in graph.outputs
    ]
    graph.writes = [(target, resolve(replaced, value)) for target, value in graph.writes]
