"""What Python code that defines tensor subclasses calls of torch: the default handler, and how tensors become ones of a subclass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.subclasses import TorchFunctionOff, is_admitted
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _default_handler(machine: Machine, args: Any, kwargs: Any) -> Any:
    return _handle(machine, *args, **kwargs)


def _handle(
    machine: Machine, cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """`super().__torch_function__(...)`."""
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    return machine.tape.subclasses.default(cls, func, tuple(args), dict(kwargs or {}))


@substitute_for(torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
def _disable(machine: Machine, args: Any, kwargs: Any) -> TorchFunctionOff:
    return TorchFunctionOff(machine.tape.subclasses)


@substitute_for(torch.Tensor.as_subclass)
def _as_subclass(machine: Machine, args: Any, kwargs: Any) -> Any:
    tensor, cls = args
    if not is_admitted(cls):
        raise GraphBreak("tensor-subclass", f"a tensor is made a {cls.__name__}")
    return machine.tape.subclasses.convert(tensor, cls)


@substitute_for(torch.Tensor._make_subclass)
def _make_subclass(machine: Machine, args: Any, kwargs: Any) -> Any:
    cls, data, *rest = args
    if not is_admitted(cls) or issubclass(cls, torch.nn.Parameter) or any(rest) or kwargs:
        raise GraphBreak("tensor-subclass", f"a {cls.__name__} is made")
    with machine.tape.subclasses.off():
        detached = machine.tape.call_method("detach", (data,))
    return machine.tape.subclasses.note(detached, cls)
