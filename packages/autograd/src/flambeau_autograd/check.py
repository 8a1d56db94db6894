"""The checker of border 2: what must hold of a graph that autograd hands to a compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims import check
from flambeau_prims.symbols import missing_symbols

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph


def check_graph(graph: Graph, after: str, sound: check.SoundCalls | None = None) -> None:
    """Raise `GraphError`, which names the pass, unless `graph` is functional, keeps the promises of
    every graph, and has inputs that give all its symbols.
    """
    try:
        check.check_graph(graph, functional=True, sound=sound)
    except check.GraphError as error:
        raise check.GraphError(f"after {after}: {error}") from None
    if missing := missing_symbols(graph):
        raise check.GraphError(f"after {after}: no input gives the symbols {missing}\n{graph}")
