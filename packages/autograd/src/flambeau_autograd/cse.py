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
from flambeau_prims.graph import Graph, Node

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    specs = tuple(None if out is None else out.spec for out in node.outputs)
    return (node.op, specs, *_flat(node.args), *_flat(node.kwargs))


def _flat(arg: Any) -> Iterator[Any]:
    if isinstance(arg, (tuple, list)):
        yield len(arg)
        yield tuple
        for item in arg:
            yield from _flat(item)
    elif isinstance(arg, dict):
        for name in sorted(arg):
            yield name
            yield from _flat(arg[name])
    elif isinstance(arg, (bool, float, complex)):
        # 1, 1.0 and True compare equal, as do 0.0 and -0.0; a NaN does not equal itself.
        yield type(arg)
        yield repr(arg)
    else:
        yield arg
