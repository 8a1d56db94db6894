"""AOT autograd: from a graph of torch calls to functional forward and backward graphs, and the
callable that glues them.

    compiled = aot(gm, example_inputs, compiler, options=AutogradOptions())

`compiler(graph, kind)` turns each functional graph into a callable; see `pipeline.aot`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_autograd._version import __version__
from flambeau_prims.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flambeau_autograd.options import AutogradOptions
    from flambeau_autograd.pipeline import aot
    from flambeau_autograd.reasons import REASONS

__all__ = ["REASONS", "AutogradOptions", "__version__", "aot"]

lazy_exports(
    __name__,
    {
        "flambeau_autograd.options": ("AutogradOptions",),
        "flambeau_autograd.pipeline": ("aot",),
        "flambeau_autograd.reasons": ("REASONS",),
    },
)
