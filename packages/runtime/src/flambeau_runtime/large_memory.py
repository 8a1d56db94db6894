"""Memory of large results on a CPU, which further calls use again (`csrc/large_memory.c`)."""

from __future__ import annotations

from flambeau_runtime import native
from flambeau_runtime.freed_memory import release_freed_memory


def release_memory() -> None:
    """Give back what is kept for further calls: memory of large results that were dropped, and what
    is free in the C library.
    """
    core = native.core()
    if core is not None:
        core.release_memory()
    release_freed_memory()
