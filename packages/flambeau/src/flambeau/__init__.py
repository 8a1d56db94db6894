"""Flambeau: torch.compile in five readable stages.

    import flambeau
    compiled = flambeau.compile(model)

`compile` has torch.compile's signature; `explain` shows what it did.
"""

from __future__ import annotations

from flambeau._version import __version__
from flambeau.api import compile
from flambeau.backends import list_backends, register_backend
from flambeau.explain import Explanation, explain
from flambeau.module import CompiledModule
from flambeau.reset import reset

__all__ = [
    "CompiledModule",
    "Explanation",
    "__version__",
    "compile",
    "explain",
    "list_backends",
    "register_backend",
    "reset",
]
