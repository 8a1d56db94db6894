"""States of torch that operators read when they run, and default devices.

Setting such a state is a graph break at the program's own call. The functions behind it break in
torch's C functions too; a break here is one, in the program's own line, and not several inside
torch. Marks of profilers are left out.

`with torch.device(...)`, `torch.set_default_device` and `torch.get_default_device` are captured
(torch_calls/contexts.py).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.graph
import torch.autograd.profiler
import torch.cuda.nvtx
import torch.profiler
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from flambeau_capture.interpreter.substitute_registry import (
    breaking,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.torch_state import cudnn_flags, function_modes, set_cudnn_flags

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute

_RANDOM = (
    (torch.cuda, ("initial_seed", "get_rng_state_all", "set_rng_state_all")),
)  # fmt: skip
_SETTERS = (
    (
        torch,
        (
            "set_default_tensor_type",
            "use_deterministic_algorithms",
            "set_deterministic_debug_mode",
            "set_float32_matmul_precision",
            "set_warn_always",
            "set_num_threads",
            "set_flush_denormal",
        ),
    ),
    (torch.backends.mkldnn, ("flags", "set_flags")),
    (torch.autograd.grad_mode, ("set_multithreading_enabled", "_unsafe_preserve_version_counter")),
    (torch.autograd, ("detect_anomaly", "set_detect_anomaly")),
    (
        torch.autograd.graph,
        (
            "saved_tensors_hooks",
            "save_on_cpu",
            "disable_saved_tensors_hooks",
            "allow_mutation_on_saved_tensors",
        ),
    ),
    (torch.autograd.profiler, ("profile", "emit_nvtx", "emit_itt")),
    (torch.profiler, ("profile",)),
)
_MODES = (
    _device.DeviceContext.__enter__, _device.DeviceContext.__exit__,
    TorchDispatchMode.__enter__, TorchDispatchMode.__exit__,
)  # fmt: skip


def _declare() -> None:
    for module, names in (*_RANDOM, *_SETTERS):
        for name in names:
            text = f"call of {module.__name__}.{name}"
            substitute_if_new(getattr(module, name, None), breaking("torch-state", text))
    for method in _MODES:
        verb = "entered" if method.__name__ == "__enter__" else "left"
        text = f"a {method.__qualname__.split('.')[0]} is {verb}"
        substitute_if_new(method, breaking("torch-state", text))


def _for_positions(function: Any, step: int) -> None:
    """A function mode is entered or left: the one in which scalar tensors index as positions, with
    which `create_block_mask` calls a mask function, is the machine's own; others break.
    """
    refuse = breaking("torch-state", f"a TorchFunctionMode is {'entered' if step > 0 else 'left'}")

    def change(machine: Machine, args: Any, kwargs: Any) -> Any:
        mode = type(args[0])
        if (mode.__module__, mode.__name__) != _POSITION_MODE:
            return refuse(machine, args, kwargs)
        machine.positions += step
        return args[0] if step > 0 else None

    substitute_for(function)(change)


_POSITION_MODE = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")
_for_positions(TorchFunctionMode.__enter__, 1)
_for_positions(TorchFunctionMode.__exit__, -1)
_declare()


@substitute_for(torch.backends.cudnn.set_flags)
def _set_cudnn_flags(machine: Machine, args: Any, kwargs: Any) -> Any:
    """`torch.backends.cudnn.set_flags`, which the context `flags` calls twice: one switch."""
    machine.depend_on_state("cudnn_flags")
    before = cudnn_flags()
    given = inspect.signature(torch.backends.cudnn.set_flags).bind(*args, **kwargs)
    given.apply_defaults()
    machine.tape.call_state(set_cudnn_flags, (given.args,), {})
    return before


@substitute_for(torch.nn.Module._apply)
def _apply(machine: Machine, args: Any, kwargs: Any) -> Any:
    """What `module.to(...)`, `.half()` and the like do to each parameter: to its data, in place."""
    raise GraphBreak(
        "parameter-made", f"the parameters of a {type(args[0]).__qualname__} are converted"
    )


def _mark(function: Any) -> Substitute:
    """Marks for profilers are not kept: what they would enclose is compiled away."""
    return lambda machine, args, kwargs: (
        None if torch.cuda.is_available() else machine.interpret(function, args, kwargs)
    )


for _name in ("range_push", "range_pop", "mark"):
    substitute_for(getattr(torch.cuda.nvtx, _name))(_mark(getattr(torch.cuda.nvtx, _name)))


# ---------------------------------------------------------------- default device


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


@substitute_for(torch.set_default_device, unpacked=True)
def _set_default(machine: Machine, device: Any) -> None:
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
