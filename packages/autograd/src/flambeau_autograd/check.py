"""The checker of border 2: what must hold of a graph that autograd hands to a compiler.

The laws of primitives (`flambeau_prims.check`) are checked with it, among them: a view's Spec says
where in its operand's memory it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_autograd.symbols import missing_symbols
from flambeau_prims.check import GraphError, check_prims_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.primitives import Prim
from flambeau_prims.rules.registry import is_mutating
from flambeau_prims.sizes import known_eq

if TYPE_CHECKING:
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size


class MalformedGraph(AssertionError):
    """A pass broke a law of the border; the text names the node."""


def same_sizes(left: tuple[Size, ...], right: tuple[Size, ...]) -> bool:
    """Whether two shapes are certainly equal: a symbol that was found to be 4 may still stand in
    one of them.
    """
    return len(left) == len(right) and all(known_eq(a, b) for a, b in zip(left, right, strict=True))


def check_graph(graph: Graph, after: str = "") -> Graph:
    """Raise `MalformedGraph` unless `graph` is functional, in SSA form, closed, and gives all its
    symbols.
    """
    defined: set[Value] = {value for value in graph.inputs if isinstance(value, Value)}
    where = f" (after {after})" if after else ""

    def fail(text: str) -> None:
        raise MalformedGraph(f"{text}{where}\n{graph}")

    def check_node(node: Node) -> None:
        if not isinstance(node.op, Prim) and is_mutating(node.op):
            fail(f"{node.op} mutates")
        for value in node.operands():
            if value not in defined:
                fail(f"{value} is read before it is defined, in {node}")
        for out in node.outputs:
            if out is None:
                continue
            if out in defined:
                fail(f"{out} is defined twice, the second time in {node}")
            if out.producer is not node:
                fail(f"{out} does not know its producer {node}")
            defined.add(out)

    for node in graph.nodes:
        check_node(node)
    for value in graph.live_at_exit():
        if value not in defined:
            fail(f"{value} is returned or written, but not defined")
    for target, value in graph.writes:
        if target not in graph.inputs:
            fail(f"{target} is written to, but is no input")
        if not same_sizes(target.spec.shape, value.spec.shape):
            fail(f"{target} is written with a value of shape {value.spec.shape}")
    missing = missing_symbols(graph)
    if missing:
        fail(f"no input gives the symbols {missing}")
    try:
        check_prims_graph(graph)
    except GraphError as error:
        fail(str(error))
    return graph
