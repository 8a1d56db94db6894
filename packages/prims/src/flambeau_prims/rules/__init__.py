"""Shape rules: for each ATen overload, how the Specs of its results follow from those of its
arguments.

`MODULES` is the one list of the files that hold rules; `load_all` imports them, which registers the
rules, and `custom_operators`, which finds the rules of custom operators.
"""

from __future__ import annotations

from functools import cache

from flambeau_prims.lazy_exports import import_all_apart

MODULES: tuple[str, ...] = (
    "attention", "collectives", "convolution", "copy", "factory", "foreach", "forward_mode",
    "fourier", "histogram", "index", "linalg", "loss", "matmul", "norm", "pointwise", "pool",
    "quantize", "random", "reduction", "resample", "rnn", "softmax", "sort", "special", "view",
)  # fmt: skip


@cache
def load_all() -> None:
    """Import every module of rules; cheap after the first call."""
    names = [f"{__name__}.{name}" for name in MODULES]
    import_all_apart([*names, "flambeau_prims.custom_operators"])
