"""New memory full of NaN, so that a read of what was not written shows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch

NAN_BYTE = 0xFF
"""NaN in each floating dtype, when each byte is this; -1 or the maximum in those of integers."""

BLOCKS = {1 << shift: 4 for shift in range(9, 23)}
"""How many blocks of each size in bytes are filled on a device."""

ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""Of a process that fills new memory: glibc (2.36) does not fill what a thread keeps for reuse."""

_M_PERTURB = -6


def fill_new_memory() -> bool:
    """From now on glibc fills what it allocates on the host, all of it in a process that was begun
    in `ENVIRONMENT`; False with another C library.
    """
    try:
        # It writes the complement of the lowest byte, and nothing if the number is 0.
        return bool(ctypes.CDLL("libc.so.6").mallopt(_M_PERTURB, 0x100 | (NAN_BYTE ^ 0xFF)))
    except (OSError, AttributeError):
        return False


def fill_freed_memory(sizes: Iterable[int], device: str) -> None:
    """Allocate, fill and free `BLOCKS` and blocks of these sizes in bytes in a device's memory."""
    blocks = [
        torch.full((size,), NAN_BYTE, dtype=torch.uint8, device=device)
        for size, count in (*BLOCKS.items(), *((size, 4) for size in sizes))
        for _ in range(count)
    ]
    del blocks
