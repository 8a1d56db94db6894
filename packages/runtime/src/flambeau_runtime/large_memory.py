"""Memory of large results on a CPU, which further calls use again (`csrc/large_memory.c`)."""

from __future__ import annotations

from flambeau_runtime import native


def release_memory() -> None:
    """Give back what is kept for further calls: memory of large results that were dropped."""
    core = native.core()
    if core is not None:
        core.release_memory()
