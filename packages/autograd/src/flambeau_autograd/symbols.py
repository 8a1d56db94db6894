"""Which symbolic sizes and floats a graph uses, and which of them its tensor inputs give.

A graph takes each symbol from a tensor input with a dim that is the bare symbol, else from an int
input, which stands in `Graph.inputs` as the symbol's Expr itself. A float input stands there as the
int symbol of its bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Value
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_prims.graph import Graph


def symbol_name(size: Any) -> str | None:
    """The name of the symbol that `size` is, or None if it is no bare symbol."""
    if not isinstance(size, Expr) or len(size.terms) != 1:
        return None
    ((monomial, coefficient),) = size.terms
    if coefficient != 1 or len(monomial) != 1:
        return None
    atom = size.env.atoms[monomial[0]]
    return atom.name if atom.kind == "symbol" else None


def given_symbols(inputs: list[Any]) -> dict[str, tuple[int, int | None]]:
    """For each symbol that the inputs give: (input, dim), or (input, None) for an int input."""
    found: dict[str, tuple[int, int | None]] = {}
    for position, value in enumerate(inputs):
        if not isinstance(value, Value):
            name = symbol_name(value)
            if name is not None:
                found[name] = (position, None)
            continue
        if value.spec.env is None:
            continue
        for dim, size in enumerate(value.spec.shape):
            name = symbol_name(size)
            if name is not None:
                found.setdefault(name, (position, dim))
    return found


def missing_symbols(graph: Graph) -> list[Expr]:
    """The symbols that `graph` uses and its inputs do not give, as bare Exprs."""
    if graph.env is None:
        return []
    used: set[str] = set()
    for expr in _sizes_in(graph):
        used |= expr.symbols()
    missing = used - given_symbols(graph.inputs).keys()
    in_order = [name for name in graph.env.symbols if name in missing]
    return [graph.env.bare_symbol(name) for name in in_order]


def _sizes_in(graph: Graph) -> set[Expr]:
    found: set[Expr] = set()
    for value in graph.inputs:
        found.update(_exprs(value))
    for node in graph.nodes:
        found.update(_exprs(node.args))
        found.update(_exprs(node.kwargs))
        found.update(_exprs(node.outputs))
    found.update(_exprs(graph.outputs))
    return found


def _exprs(arg: Any) -> Iterator[Expr]:
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, FloatExpr):
        yield from _exprs(arg.args)
    elif isinstance(arg, Value):
        if arg.spec.env is not None:
            yield from _exprs((arg.spec.shape, arg.spec.stride, arg.spec.offset))
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _exprs(item)
    elif isinstance(arg, dict):
        for item in arg.values():
            yield from _exprs(item)
