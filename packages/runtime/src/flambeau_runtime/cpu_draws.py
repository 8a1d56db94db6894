"""Draws from the default generator of a CPU, many at a time: eager's numbers, bit for bit.

    y = aten.bernoulli.p(x, 0.9)   ->   draw_coins(generator, y, ...)

Eager's kernel makes a number at a time. Some builds of torch draw coins from a library's generator
on some processors: where a first draw is not the same in both ways, eager's is used.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from typing import Any

import torch

from flambeau_runtime.native import core

_EAGER = torch.ops.aten.bernoulli.p
_FEWEST = 1024
"""Elements below which reading and writing a generator's state takes longer than it saves."""

_BITS = 53
"""Of a number that eager compares with the probability."""

_DRAWING = threading.RLock()
"""Held while a state is read and written: Programs of several threads draw in turn. A finalizer may
run in there, and draw.
"""
if hasattr(os, "register_at_fork"):  # another thread may have held it
    os.register_at_fork(after_in_child=_DRAWING._at_fork_reinit)  # type: ignore[attr-defined]


def bernoulli(x: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    """`aten.bernoulli.p` from the default generator: coins like `x`, 1 with probability `p`."""
    if x.numel() >= _FEWEST and x.dtype is torch.bool and x.device.type == "cpu" and 0 <= p <= 1:
        if _is_same_as_eager():
            out = torch.empty(x.shape, dtype=torch.bool, device="cpu")
            if _draw(torch.default_generator, out, p):
                return out
    return _EAGER(x, p)  # type: ignore[no-any-return]


def _draw(generator: torch.Generator, out: torch.Tensor, p: float) -> bool:
    """Fill row-major bools; whether the generator's state was known."""
    native: Any = core()
    threshold = math.ceil(p * 2.0**_BITS)
    with _DRAWING:
        return bool(native.draw_coins(generator, out.data_ptr(), out.numel(), threshold))


@functools.cache
def _is_same_as_eager() -> bool:
    """Whether eager draws coins as `draw_coins` does, in this process."""
    if core() is None:
        return False
    first, second = torch.Generator(), torch.Generator()
    with torch.no_grad():
        for p in (0.3, 0.9):
            expected = torch.empty(_FEWEST, dtype=torch.bool, device="cpu")
            out = torch.empty_like(expected)
            expected.bernoulli_(p, generator=first)
            if not _draw(second, out, p) or not torch.equal(out, expected):
                return False
    return torch.equal(first.get_state(), second.get_state())
