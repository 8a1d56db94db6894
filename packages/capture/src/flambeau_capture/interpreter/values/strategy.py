"""How a frame is interpreted, where there is more than one way that is right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureStrategy:
    """`compiling`: what `is_compiling()` answers. `takes_locks`: the entry takes the locks that the
    frame takes; else that is a graph break. `shows_history`: text of tensors that have a gradient
    function may be made, which cannot leave the frame; else that is a graph break.
    """

    compiling: bool = True
    takes_locks: bool = True
    shows_history: bool = True


DEFAULT_STRATEGY = CaptureStrategy()
"""The first strategy in which a frame is tried."""
