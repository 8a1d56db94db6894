"""Loops, schedule, code: a graph of primitives in, a Program out.  See README.md."""

from __future__ import annotations

from flambeau_inductor._version import __version__
from flambeau_inductor.check import BorderError
from flambeau_inductor.compile import Explanation, compile_graph, explain_graph
from flambeau_inductor.options import InductorOptions

__all__ = [
    "BorderError", "Explanation", "InductorOptions", "__version__", "compile_graph",
    "explain_graph",
]  # fmt: skip
