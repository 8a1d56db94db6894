"""Decompositions: what ATen operators are made of, one family a file.

`MODULES` is the one list of the files that hold decompositions; `load_all` imports them, which
registers them.
"""

from __future__ import annotations

from functools import cache

from flambeau_prims.lazy_exports import import_all_apart, import_apart

MODULES = (
    "pointwise", "activation", "copy", "factory", "view", "index", "blocks", "scatter",
    "embedding_bag",
    "reduction", "scan", "sort", "search", "softmax", "norm", "loss", "distance", "cross", "unfold",
    "dropout", "random", "pool", "max_pool", "special", "resample", "interpolate", "borders",
    "grid_sample", "foreach",
)  # fmt: skip


LIBRARIES = {"quantized_decomposed": "quantisation"}
"""The files that a graph with operators of other libraries needs, by these libraries' names."""


@cache
def load_library(namespace: str) -> None:
    """Import what decomposes a library's operators, if there is such a file."""
    name = LIBRARIES.get(namespace)
    if name is not None:
        import_apart(f"{__name__}.{name}")


@cache
def load_all() -> None:
    """Import every module of decompositions; cheap after the first call."""
    import_all_apart([f"{__name__}.{name}" for name in MODULES])
