"""Decompositions: what ATen operators are made of, one family a file.

`MODULES` is the one list of the files that hold decompositions; `load_all` imports them, which
registers them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

MODULES = (
    "pointwise", "activation", "copy", "factory", "view", "index", "reduction", "softmax", "norm",
    "loss", "dropout", "pool", "max_pool", "resample", "foreach",
)  # fmt: skip

_LOADED: list[bool] = []


def load_all() -> None:
    """Import every module of decompositions; cheap after the first call."""
    if _LOADED:
        return
    for name in MODULES:
        import_module(f"{__name__}.{name}")
    _LOADED.append(True)


def unlisted() -> set[str]:
    """Files of this folder that MODULES forgets (a test asserts that there are none)."""
    return (
        {module.name for module in iter_modules(__path__)}
        - set(MODULES)
        - {"registry", "extern", "windows"}
    )
