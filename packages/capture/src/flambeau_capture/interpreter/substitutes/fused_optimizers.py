"""Operators of optimizers' steps that take numbers as a tensor, too.

    torch._fused_adamw_(params, ..., lr=f0)
    ->  torch._fused_adamw_(params, ..., lr=torch.scalar_tensor(f0, dtype=torch.float64))

The operators' C++ takes a number, which would make each rate of a schedule a separate graph, or a
tensor.

    torch._foreach_addcdiv_(params, means, norms, [t0, t1])
    ->  torch._foreach_addcdiv_(params, means, norms, torch.stack([t0, t1]))

torch.optim computes on step counters as tensors while `is_compiling()` is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitute_registry import substitute_for

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute

_STEPS = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")


def _step(function: Any) -> Substitute:
    def step(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rate = kwargs.get("lr")
        if type(rate) is torch.SymFloat:
            given = {"dtype": torch.float64}
            kwargs = {
                **kwargs,
                "lr": machine.tape.call_function(torch.scalar_tensor, (rate,), given),
            }
        return machine.tape.call_function(function, args, kwargs)

    return step


for _name in _STEPS:
    _function = getattr(torch, _name)
    if "tensor_lr" in getattr(torch.ops.aten, _name).overloads():
        substitute_for(_function)(_step(_function))


_ADDING_PRODUCTS = ("_foreach_addcmul", "_foreach_addcdiv")


def _scaled(function: Any) -> Substitute:
    def add_products(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scales: Any = args[3] if len(args) > 3 else kwargs.get("scalars")
        listed = type(scales) in (list, tuple) and len(scales) > 0
        if listed and machine.observed_is_compiling and all(map(_is_counter, scales)):
            stacked = machine.tape.call_function(torch.stack, (scales,))
            args, kwargs = (*args[:3], stacked), {}
        return machine.tape.call_function(function, args, kwargs)

    return add_products


def _is_counter(scale: Any) -> bool:
    return isinstance(scale, torch.Tensor) and not scale.ndim and scale.device.type == "cpu"


for _name in _ADDING_PRODUCTS:
    for _function in (getattr(torch, _name), getattr(torch, f"{_name}_")):
        substitute_for(_function)(_scaled(_function))
