"""Merge common subexpressions: calls of one operator on the same arguments.

    a = aten.expand(x, [4, 4])
    b = aten.expand(x, [4, 4])     ->     a = aten.expand(x, [4, 4])
    c = aten.mul(a, b)                    c = aten.mul(a, a)

Random calls and checks of the data stay apart. Outputs that come to share memory by this are parted
again by `unalias_outputs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_autograd.operators import happens_once
from flambeau_autograd.substitution import Substitution
from flambeau_prims.graph import Graph, Node, Value

if TYPE_CHECKING:
    from collections.abc import Iterable


def merge_common_subexpressions(graph: Graph) -> Graph:
    """Merge equal calls in `graph`, in place."""
    replaced = Substitution()
    seen: dict[tuple[Any, ...], Node] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        replaced.apply(node)
        if happens_once(node):
            kept.append(node)
            continue
        first = seen.setdefault(_key(node), node)
        if first is node:
            kept.append(node)
            continue
        for mine, its in zip(node.outputs, first.outputs, strict=True):
            if mine is not None and its is not None:
                replaced.replace(mine, its)
    graph.nodes = kept
    replaced.apply_to_exits(graph)
    return graph


def _key(node: Node) -> tuple[Any, ...]:
    # The Specs belong to the key because a primitive's result may be laid out in any dense strides.
    # Operators by their identity: torch computes their hashes in Python.
    key: list[Any] = [id(node.op)]
    for out in node.outputs:
        key.append(None if out is None else out.spec)
    _flatten((node.args, node.kwargs) if node.kwargs else node.args, key)
    return tuple(key)


def _flatten(items: Iterable[Any], key: list[Any]) -> None:
    # Plain recursion into a list: nested generators take twice as long.
    for item in items:
        kind = type(item)
        if kind is Value or kind is int:
            key.append(item)
        elif isinstance(item, (tuple, list)):
            key += (len(item), tuple)
            _flatten(item, key)
        elif isinstance(item, dict):
            for name in sorted(item):
                key.append(name)
                _flatten((item[name],), key)
        elif isinstance(item, (bool, float, complex)):
            # 1, 1.0 and True compare equal, as do 0.0 and -0.0; a NaN does not equal itself.
            key += (kind, repr(item))
        else:
            key.append(item)
