"""Compiles that are begun before their results are needed.

A compiler may have a method `begin(graph, kind)`, which returns what ends the compile and returns
its callable: meanwhile kernels are built, and the next graph can be begun. All graphs are begun
before the first is ended. Other compilers do all of their work at the end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_autograd.graph_call import Compiled
    from flambeau_prims.graph import Graph

    Compiler: TypeAlias = "Callable[[Graph, str], Compiled]"


def begin(compiler: Compiler, graph: Graph, kind: str) -> Callable[[], Compiled]:
    """Begin to compile a graph of a kind ("inference", "forward", "backward"); what ends that."""
    begun: Callable[[Graph, str], Callable[[], Compiled]] | None = getattr(compiler, "begin", None)
    return partial(compiler, graph, kind) if begun is None else begun(graph, kind)
