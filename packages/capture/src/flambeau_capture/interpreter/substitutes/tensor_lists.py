"""`torch.tensor` of nested lists with 0-dim tensors in them: eager reads their values, a graph puts the tensors together.

torch.tensor([x.sum(), 1.0])   ->   torch.stack([x.sum().detach().to("cpu", float32), torch.tensor(1.0)])

The dtype is that to which all elements are promoted, a tensor by its own dtype, a number by the default one of its type.  Where eager may
raise for a value (a dtype that does not hold every value of a tensor's), it is left to eager.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitutes.registry import substitute_for

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_LISTS = (list, tuple)
_OPTIONS = frozenset({"dtype", "device", "requires_grad"})
_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    torch.SymBool: torch.bool,
    int: torch.int64,
    torch.SymInt: torch.int64,
}


def tensor_of(machine: Machine, data: Any, options: dict[str, Any]) -> torch.Tensor | None:
    """The tensor that `torch.tensor(data, **options)` makes of such lists; None for other data, and where eager may raise."""
    shape = _shape(data) if type(data) in _LISTS else None
    if shape is None or not options.keys() <= _OPTIONS:
        return None
    leaves = _leaves(data)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    dtypes = [_dtype(leaf) for leaf in leaves]
    dtype = options.get("dtype") or functools.reduce(torch.promote_types, dtypes)
    for leaf, own in zip(leaves, dtypes, strict=True):
        if isinstance(leaf, torch.Tensor) and not _holds(dtype, own):
            return None
    devices = machine.tape.devices
    default = devices.given(torch.tensor, {}) if devices.inside else {}
    given = {"dtype": dtype, "device": options.get("device") or default.get("device", "cpu")}
    made = [_element(machine, leaf, given) for leaf in leaves]
    result = machine.tape.call_function(torch.stack, (made,))
    if len(shape) > 1:
        result = machine.tape.call_method("reshape", (result, shape))
    if options.get("requires_grad"):
        result = machine.tape.call_method("requires_grad_", (result,))
    return result


def _element(machine: Machine, leaf: Any, given: dict[str, Any]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return machine.call(torch.tensor, (leaf,), given)
    detached = machine.tape.call_method("detach", (leaf,))
    return machine.tape.call_method("to", (detached,), given)


def _shape(data: Any) -> tuple[int, ...] | None:
    """The shape of nested lists whose leaves are numbers and 0-dim tensors; None where they are ragged, empty, or hold other things."""
    if type(data) not in _LISTS:
        number = type(data) in _DTYPES or type(data) in (float, complex, torch.SymFloat)
        return () if number or (isinstance(data, torch.Tensor) and data.ndim == 0) else None
    shapes = {_shape(item) for item in data}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(data), *inner)


def _leaves(data: Any) -> list[Any]:
    if type(data) not in _LISTS:
        return [data]
    return [leaf for item in data for leaf in _leaves(item)]


def _dtype(leaf: Any) -> torch.dtype:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    if type(leaf) is complex:
        return torch.promote_types(torch.get_default_dtype(), torch.complex32)
    return _DTYPES.get(type(leaf), torch.get_default_dtype())


def _holds(dtype: torch.dtype, own: torch.dtype) -> bool:
    """Whether eager converts every value of a dtype to this one."""
    if dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not own.is_complex
    if own.is_floating_point or own.is_complex:
        return False
    return dtype is torch.bool or torch.promote_types(dtype, own) is dtype


@substitute_for(torch.Tensor.new_tensor)
def _new_tensor(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 2 and isinstance(args[0], torch.Tensor):
        defaults = {"dtype": args[0].dtype, "device": args[0].device}
        made = tensor_of(machine, args[1], defaults | kwargs)
        if made is not None:
            return made
    return machine.tape.call_method("new_tensor", args, kwargs)
