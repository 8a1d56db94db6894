"""Let the C library keep memory that programs free, for the next call.

glibc takes large blocks from the system and gives them back when they are freed, and so it does
with the top of its heap once that is free. Each call of a program then pays for every page of its
results again: the kernel clears it, at about the price of writing it twice. Two numbers of
mallopt(3) say when: from `M_MMAP_THRESHOLD` bytes on, a block is mapped separately; of more than
`M_TRIM_THRESHOLD` bytes, the free top is given back. The first is set to its largest value, the
second to what one call of the largest program holds, a bounded share of the machine's memory.
`release_freed_memory` gives back what is free. Settings of the user (`MALLOC_TRIM_THRESHOLD_`)
still decide.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import lru_cache
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""

LARGEST_BLOCK = 32 << 20
"""The largest `M_MMAP_THRESHOLD` that glibc accepts. Of larger results of kernels
`large_memory` takes care."""

SLACK = 64 << 20
"""For what a plan does not know: temporary memory of library calls, gaps between blocks. It is also
what glibc itself keeps once a process has freed a large block."""

SHARE = 8
"""At most this part of the machine's memory is kept, and at most what `mallopt` takes."""

LARGEST_INT = (1 << 31) - 1

SETTINGS = (
    "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip

_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread may have held it
    os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]
_kept = 0


def keep_freed_memory(peak: int | None) -> None:
    """Keep what a call that holds `peak` bytes at a time frees; None: nobody knows, so as much as
    is kept at most. What is kept for other programs stays kept.
    """
    global _kept
    if (mallopt := _function("mallopt")) is None or not _is_left_to_us():
        return
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    most = min(machine // SHARE, LARGEST_INT)
    threshold = most if peak is None else min(peak + SLACK, most)
    with _LOCK:
        if threshold > _kept and mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK) == 1:
            mallopt(M_TRIM_THRESHOLD, threshold)
            _kept = threshold


def release_freed_memory() -> None:
    """Give back to the system all pages that are free in the C library."""
    if (trim := _function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))


@lru_cache
def _function(name: str) -> Any:
    """A function of the C library; None where it has none of that name, as other than glibc."""
    if os.name != "posix":
        return None
    return getattr(ctypes.CDLL(None), name, None)


def _is_left_to_us() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." not in tunables and not any(name in os.environ for name in SETTINGS)
