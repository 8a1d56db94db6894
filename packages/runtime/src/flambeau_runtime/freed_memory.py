"""Let the C library keep memory that programs free, for the next call.

glibc takes large blocks from the system and gives them back when they are freed. Each call of a
program then pays for every page of its results again: the kernel clears it, at about the price of
writing it twice. glibc stops that by itself once the process has freed a block of such a size (up
to 32 MB; `M_MMAP_THRESHOLD` in mallopt(3)), and keeps twice as much. One block that is never
written to is enough. Settings of the user (`MALLOC_MMAP_THRESHOLD_`) still decide.
"""

from __future__ import annotations

from functools import lru_cache

import torch

BLOCK_BYTES = 31 << 20


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Free one large block, once in a process."""
    torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cpu")
