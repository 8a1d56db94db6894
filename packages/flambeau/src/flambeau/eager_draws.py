"""Calls of a compiled graph whose random numbers eager's own kernels must draw.

    compiled = draw_as_eager(compiled, gm.forward, (0,))

Kernels that draw are passed the generator's seed and offset by value, so a CUDA graph that the
caller captures could only replay the numbers of its capture; torch's own draws read the generator's
state as the graph runs. And eager's dropout draws other numbers where its operand is not aligned to
16 bytes. In both cases the captured graph runs as it is, under autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Compiled = Callable[..., tuple[Any, ...]]

ALIGNMENT = 16


def draw_as_eager(compiled: Compiled, eager: Compiled, aligned: tuple[int, ...]) -> Compiled:
    """`compiled`, but `eager` while the caller captures a CUDA graph, or where an argument at a
    position in `aligned` is not aligned.
    """

    on_gpu = torch.cuda.is_available()

    def call(*args: Any) -> tuple[Any, ...]:
        captures = on_gpu and torch.cuda.is_current_stream_capturing()
        if captures or any(args[position].data_ptr() % ALIGNMENT for position in aligned):
            return eager(*args)
        return compiled(*args)

    return call
