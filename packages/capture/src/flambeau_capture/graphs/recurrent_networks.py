"""Recurrent networks that a graph leaves to torch, in the autocast state of the program's call."""

from __future__ import annotations

from typing import Any

import torch


def in_autocast(name: str, dtype: torch.dtype | None, *args: Any) -> Any:
    """`torch.lstm(*args)` and the like on a GPU, under autocast to `dtype` or, for None, without.

    A compiled graph has its casts inside and runs in the caller's state, which can be another.
    """
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        return getattr(torch, name)(*args)
