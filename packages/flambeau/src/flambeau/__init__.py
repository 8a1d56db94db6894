"""Flambeau: torch.compile in five readable stages.

    import flambeau
    compiled = flambeau.compile(model)

`compile` has torch.compile's signature; `explain` shows what it did; `compiler` has
torch.compiler's functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau._version import __version__
from flambeau_prims.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flambeau import compiler
    from flambeau.api import compile, compile_in_place
    from flambeau.backend_registry import list_backends, register_backend
    from flambeau.explain import Explanation, explain
    from flambeau.module import CompiledModule
    from flambeau.reset import reset
    from flambeau_capture.marks import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
    from flambeau_capture.record import CaptureError

__all__ = [
    "CaptureError", "CompiledModule", "Explanation", "__version__", "compile", "compile_in_place",
    "compiler", "explain", "list_backends", "mark_dynamic", "mark_static", "mark_unbacked",
    "maybe_mark_dynamic", "register_backend", "reset",
]  # fmt: skip

lazy_exports(
    __name__,
    {
        "flambeau": ("compiler",),
        "flambeau.api": (
            "compile",
            "compile_in_place",
        ),
        "flambeau.backend_registry": (
            "list_backends",
            "register_backend",
        ),
        "flambeau.explain": (
            "Explanation",
            "explain",
        ),
        "flambeau.module": ("CompiledModule",),
        "flambeau.reset": ("reset",),
        "flambeau_capture.record": ("CaptureError",),
        "flambeau_capture.marks": (
            "mark_dynamic",
            "mark_static",
            "mark_unbacked",
            "maybe_mark_dynamic",
        ),
    },
)
