"""Flambeau: torch.compile in five readable stages.

    import flambeau
    compiled = flambeau.compile(model)

`compile` has torch.compile's signature; `explain` shows what it did; `compiler` has
torch.compiler's functions.
"""

from __future__ import annotations

from flambeau import compiler
from flambeau._version import __version__
from flambeau.api import compile, compile_in_place
from flambeau.backends import list_backends, register_backend
from flambeau.explain import Explanation, explain
from flambeau.module import CompiledModule
from flambeau.reset import reset
from flambeau_capture import CaptureError
from flambeau_capture.marks import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic

__all__ = [
    "CaptureError", "CompiledModule", "Explanation", "__version__", "compile", "compile_in_place",
    "compiler", "explain", "list_backends", "mark_dynamic", "mark_static", "mark_unbacked",
    "maybe_mark_dynamic", "register_backend", "reset",
]  # fmt: skip
