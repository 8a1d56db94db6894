"""The default device that a frame sets: named in the calls that it concerns.

    with torch.device("meta"):
        y = torch.ones(3)            ->      y = torch.ones(3, device=device("meta"))

torch does the same by a function mode, which neither the capture nor the graph needs.  A mode that is on when the frame begins does its
work by itself, and is guarded.  What the frame leaves set is set once its graph has run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import _device_constructors

from flambeau_capture.record import CallEffect, Const

if TYPE_CHECKING:
    from flambeau_capture.record import Effect

_CPU = torch.device("cpu")


class DefaultDevices:
    """What one frame has set: the devices of the `with torch.device(...)` blocks that it is in, and the argument of `set_default_device`."""

    def __init__(self) -> None:
        self.blocks: list[torch.device] = []
        self.default: torch.device | None = None
        self.is_set = False

    @property
    def inside(self) -> bool:
        """Whether the frame has set any."""
        return self.is_set or bool(self.blocks)

    @property
    def current(self) -> torch.device:
        """The device that is in force.  Without a default it is the CPU, whatever surrounds the frame."""
        return self.blocks[-1] if self.blocks else self.default or _CPU

    def given(self, function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a call, with the device that torch's mode would add."""
        if function not in _device_constructors() or kwargs.get("device") is not None:  # type: ignore[no-untyped-call]
            return kwargs
        return {**kwargs, "device": self.current}

    def effects(self) -> list[Effect]:
        """What is set when the graph has run."""
        found: list[Effect] = []
        if self.is_set:
            found.append(CallEffect(torch.set_default_device, (Const(self.default),)))
        enter: Any = torch.device.__enter__  # type: ignore[attr-defined]
        return found + [CallEffect(enter, (Const(device),)) for device in self.blocks]
