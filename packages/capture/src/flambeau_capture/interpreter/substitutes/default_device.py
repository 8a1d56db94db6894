"""`with torch.device(...)`, `torch.set_default_device` and `torch.get_default_device` in a captured frame (default_device.py beside)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import DeviceContext

from flambeau_capture.guards.torch_state import function_modes
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(torch.device.__enter__)  # type: ignore[attr-defined]
def _enter(machine: Machine, args: Any, kwargs: Any) -> torch.device:
    machine.tape.devices.blocks.append(args[0])
    return args[0]  # type: ignore[no-any-return]


@substitute_for(torch.device.__exit__)  # type: ignore[attr-defined]
def _exit(machine: Machine, args: Any, kwargs: Any) -> None:
    blocks = machine.tape.devices.blocks
    if not blocks:
        raise GraphBreak("torch-state", "a torch.device is left that was entered before the graph")
    blocks.pop()


@substitute_for(torch.set_default_device)
def _set_default(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    (device,) = (*args, *kwargs.values())
    if machine.tape.subgraphs:
        raise GraphBreak("torch-state", "the default device is set in a function given to torch")
    if any(type(mode) is DeviceContext for mode in function_modes()):
        raise GraphBreak("torch-state", "the default device is set where there is another")
    devices = machine.tape.devices
    devices.default, devices.is_set = None if device is None else torch.device(device), True


@substitute_for(torch.get_default_device)
def _get_default(machine: Machine, args: Any, kwargs: Any) -> torch.device:
    devices = machine.tape.devices
    if not devices.inside:
        machine.depend_on_state("default_device")
        return torch.get_default_device()
    device = devices.current
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    return torch.empty(0, device=device).device
