"""Steps of fused optimizers whose learning rate is a number that changed between calls.

    torch._fused_adamw_(params, ..., lr=f0)
    ->  torch._fused_adamw_(params, ..., lr=torch.scalar_tensor(f0, dtype=torch.float64))

The operators' C++ takes a number, which would make each rate of a schedule a separate graph, or a
tensor.
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
