"""The kernels whose text is the same for all sizes (`lowering/kernel_calls.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp import lstm, winograd

if TYPE_CHECKING:
    from flambeau_runtime.program import Kernel, Source

FIXED_KERNELS = winograd.NAMES | lstm.NAMES
"""What is called -> the kernel."""


def fixed_source(call: str, threads: int) -> tuple[Source, tuple[Kernel, ...]]:
    """The translation unit for what is called, and the unit's kernels, whose `source` is 0;
    `threads`: 0 for as many as OpenMP has.
    """
    if call in lstm.NAMES:
        return lstm.lstm_source(call, threads)
    return winograd.winograd_source(call, threads)
