"""What torch.optim wraps around `step()`: the grad mode it runs in, without the breaks that it asks of another compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer, _get_value, _use_grad_for_differentiable
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from flambeau_capture.interpreter.attributes import load_attr
from flambeau_capture.interpreter.items import load_item
from flambeau_capture.interpreter.substitutes.registry import substitute_for, substitute_for_code

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.machine import Machine


def _cell(function: types.FunctionType, name: str) -> Any:
    """What a function made by a decorator of torch wraps."""
    assert function.__closure__ is not None
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


@substitute_for_code(_use_grad_for_differentiable(lambda: None).__code__)  # type: ignore[attr-defined]
def _use_grad(
    machine: Machine, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`step()` without gradients, or with them where the optimizer is differentiable."""
    before = torch.is_grad_enabled()
    wanted = load_item(machine, load_attr(machine, args[0], "defaults"), "differentiable")
    machine.call(torch._C._set_grad_enabled, (wanted,), {})
    try:
        return machine.call(_cell(function, "func"), args, kwargs)
    finally:
        machine.call(torch._C._set_grad_enabled, (before,), {})


@substitute_for_code(torch._disable_dynamo(lambda: None).__code__)
def _disabled(
    machine: Machine, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A function that torch keeps from its own compiler: followed, and captured as far as it can be."""
    return machine.call(_cell(function, "fn"), args, kwargs)


@substitute_for(Optimizer._optimizer_step_code)
def _step_code(machine: Machine, args: Any, kwargs: Any) -> None:
    """A place for profilers to stop at."""


@substitute_for(_get_value)
def _value(machine: Machine, args: Any, kwargs: Any) -> Any:
    """A number kept in a tensor, which eager computes with as a Python float: in that precision."""
    (number,) = args
    is_tensor = isinstance(number, torch.Tensor) and number.is_floating_point()
    return machine.tape.call_method("double", (number,)) if is_tensor else number


@substitute_for(_group_tensors_by_device_and_dtype)
def _group_tensors(machine: Machine, args: Any, kwargs: Any) -> dict[Any, Any]:
    """Lists of tensors as lists by the (device, dtype) of the first list's, with the places they had."""
    lists: list[list[Any]] = args[0] if args else kwargs["tensorlistlist"]
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for at, first in enumerate(lists[0]):
        found = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for group, tensors in zip(found[0], lists, strict=True):
            if tensors:
                group.append(tensors[at])
        found[1].append(at)
    return groups
