"""The switches of torch that a captured program may set: grad mode, autocast, attention kernels,
cuDNN's flags, the default dtype.

They are really set while the program is interpreted. Read before, set back afterwards; what a frame
leaves set is set by the entry after its graph has run, and the graph itself leaves them as it found
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch


def cudnn_flags() -> tuple[Any, ...]:
    """The flags of cuDNN, in the order in which `torch.backends.cudnn.set_flags` takes them."""
    return tuple(torch.backends.cudnn.set_flags(_fp32_precision=None))


def set_cudnn_flags(flags: tuple[Any, ...]) -> None:
    """Set them all; None leaves one as it is."""
    torch.backends.cudnn.set_flags(*flags)


_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math),
    (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient),
    (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    (torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable),
    (cudnn_flags, set_cudnn_flags),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.get_default_dtype, torch._C._set_default_dtype),
)
_DEVICES = ("cpu", "cuda")

Setting = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments: the call that sets a switch."""


class Switches:
    """The switches of this thread as they are now."""

    def __init__(self) -> None:
        self.values = [read() for read, _ in _SWITCHES]
        self.autocast = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _DEVICES
        }

    @property
    def grad_enabled(self) -> bool:
        """Whether gradients are on."""
        return bool(self.values[0])

    def settings_from(self, other: Switches) -> Iterator[Setting]:
        """The calls that bring a thread from `other` to these."""
        for (_, write), value, before in zip(_SWITCHES, self.values, other.values, strict=True):
            if value != before:
                yield write, (value,)
        for device, (enabled, dtype) in self.autocast.items():
            enabled_before, dtype_before = other.autocast[device]
            if enabled != enabled_before:
                yield torch.set_autocast_enabled, (device, enabled)
            if dtype != dtype_before:
                yield torch.set_autocast_dtype, (device, dtype)

    def set_by(self, setters: Collection[Any]) -> list[Setting]:
        """The calls that set these values, of those switches alone that one of `setters` sets."""
        found: list[Setting] = [
            (write, (value,))
            for (_, write), value in zip(_SWITCHES, self.values, strict=True)
            if write in setters
        ]
        for device, (enabled, dtype) in self.autocast.items():
            if torch.set_autocast_enabled in setters:
                found.append((torch.set_autocast_enabled, (device, enabled)))
            if torch.set_autocast_dtype in setters:
                found.append((torch.set_autocast_dtype, (device, dtype)))
        return found

    def restore(self, autocast_nesting: int) -> None:
        """Set back what differs, and leave (or enter again) the autocast blocks that the frame did
        not leave.
        """
        for step, args in nesting_settings(-autocast_nesting):
            step(*args)
        for write, args in self.settings_from(Switches()):
            write(*args)


def nesting_settings(count: int) -> Iterator[Setting]:
    """The calls that enter `count` autocast blocks, or leave as many."""
    for _ in range(abs(count)):
        yield (
            (torch.autocast_increment_nesting if count > 0 else torch.autocast_decrement_nesting),
            (),
        )
