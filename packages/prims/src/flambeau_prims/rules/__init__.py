"""Shape rules: for each ATen overload, how the Specs of its results follow from those of its
arguments.

`MODULES` is the one list of the files that hold rules; `load_all` imports them, which registers the
rules.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

MODULES: tuple[str, ...] = (
    "attention", "convolution", "copy", "factory", "foreach", "forward_mode", "fourier",
    "histogram", "index", "linalg", "loss", "matmul", "norm", "pointwise", "pool", "quantize",
    "random", "reduction", "resample", "rnn", "softmax", "sort", "special", "view",
)  # fmt: skip

_LOADED: list[bool] = []


def load_all() -> None:
    """Import every module of rules; cheap after the first call."""
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
        - {"overloads", "registry"}
    )
