"""Loops, schedule, code: a graph of primitives in, a Program out.  See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor._version import __version__
from flambeau_prims.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flambeau_inductor.check import BorderError
    from flambeau_inductor.compile import Explanation, compile_graph, explain_graph
    from flambeau_inductor.options import InductorOptions

__all__ = [
    "BorderError", "Explanation", "InductorOptions", "__version__", "compile_graph",
    "explain_graph",
]  # fmt: skip

lazy_exports(
    __name__,
    {
        "flambeau_inductor.check": ("BorderError",),
        "flambeau_inductor.compile": (
            "Explanation",
            "compile_graph",
            "explain_graph",
        ),
        "flambeau_inductor.options": ("InductorOptions",),
    },
)
