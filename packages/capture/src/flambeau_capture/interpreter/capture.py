"""`capture_frame`: interpret one call, and hand over the record of it, or why there is none."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.guards import torch_state
from flambeau_capture.interpreter.decode import decode
from flambeau_capture.interpreter.frame import UNBOUND, Frame, run
from flambeau_capture.interpreter.generator import InterpretedGenerator
from flambeau_capture.interpreter.machine import Machine
from flambeau_capture.interpreter.opcodes import HANDLERS
from flambeau_capture.interpreter.rebuild import Rebuilder, effects, guard_distinct
from flambeau_capture.origins import Argument
from flambeau_capture.reasons import REASONS, GraphBreak
from flambeau_capture.record import Break, Capture
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import DynamicDims, Scope


def capture_frame(scope: Scope, options: CaptureOptions, dynamic: DynamicDims) -> Capture | Break:
    """Run the frame of `scope.function` on these arguments, without its effects, and record what it does."""
    machine = Machine(scope, options, dynamic, _main_device(scope.arguments))
    saved = _TorchState()
    try:
        with machine.tape.tracer:
            return _capture(machine, scope)
    except GraphBreak as error:
        return error.to_break(machine.break_where or machine.where or _first_line(scope.function))
    except Unsupported as error:
        id = error.reason if error.reason in REASONS else "operator-unsupported"
        return GraphBreak(id, error.text, hint=error.hint).to_break(
            machine.break_where or _first_line(scope.function)
        )
    except Exception as error:
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return GraphBreak("exception-escapes", detail).to_break(
            machine.error_where or _first_line(scope.function)
        )
    finally:
        saved.restore(machine.tape.autocast_nesting)
        machine.dissolve()


def _capture(machine: Machine, scope: Scope) -> Capture:
    function = scope.function
    code = decode(function.__code__, HANDLERS)
    if code.is_generator:
        raise GraphBreak(
            "generator-frame", f"{function.__qualname__} is a generator or coroutine function"
        )
    values: list[Any] = [UNBOUND] * code.n_locals
    for index, value in enumerate(scope.arguments):
        values[index] = machine.objects.wrap(value, Argument(code.local_names[index], index))
    frame = Frame(machine, code, function, values, None)
    for name in torch_state.implied_extras():
        machine.depend_on_state(name)
    run(frame)
    if isinstance(frame.value, InterpretedGenerator):
        raise GraphBreak("generator-escapes", "a generator is returned")
    rebuild = Rebuilder(machine)
    machine.frame = frame
    result = rebuild.recipe(frame.value)
    guard_distinct(machine)
    replayed = effects(machine, rebuild)  # before the guards are listed: it may make some
    return Capture(
        scope=scope,
        calls=machine.tape.calls,
        inputs=machine.tape.inputs,
        guards=list(machine.guards.values()),
        effects=replayed,
        result=result,
        size_env=machine.tape.env
        if machine.tape.env is not None and machine.tape.env.symbols
        else None,
        torch_state=machine.torch_state,
    )


def _first_line(function: types.FunctionType) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _main_device(arguments: tuple[Any, ...]) -> torch.device:
    """The device that the program mainly runs on: the first accelerator among the arguments' tensors and modules' parameters."""
    pending = list(arguments)
    for value in pending:
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                return value.device
        elif isinstance(value, torch.nn.Module):
            first = next(value.parameters(), None)
            if first is not None and first.device.type != "cpu":
                return first.device
        elif isinstance(value, (list, tuple)) and len(pending) < 1000:
            pending.extend(
                list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
            )
        elif type(value) is dict and len(pending) < 1000:
            pending.extend(value.values())
    return torch.device("cpu")


_ATTENTION_KERNELS = (
    (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math),
    (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient),
    (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
)


class _TorchState:
    """The states of torch that a captured program may set, read before and set back afterwards."""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.autocast = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        }
        self.attention = {read: read() for read, _ in _ATTENTION_KERNELS}
        self.autocast_cache = torch.is_autocast_cache_enabled()

    def restore(self, autocast_nesting: int) -> None:
        """Set back what differs, and leave the autocast blocks that the frame did not."""
        for _ in range(autocast_nesting):
            torch.autocast_decrement_nesting()
        for read, write in _ATTENTION_KERNELS:
            if read() != self.attention[read]:
                write(self.attention[read])
        if torch.is_grad_enabled() != self.grad:
            torch._C._set_grad_enabled(self.grad)
        for device, (enabled, dtype) in self.autocast.items():
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)
            if torch.get_autocast_dtype(device) != dtype:
                torch.set_autocast_dtype(device, dtype)
        if torch.is_autocast_cache_enabled() != self.autocast_cache:
            torch.set_autocast_cache_enabled(self.autocast_cache)
