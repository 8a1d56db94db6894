"""Operators of optimizers' steps that take numbers as a tensor, too.

    torch._fused_adamw_(params, ..., lr=f0)
    ->  torch._fused_adamw_(params, ..., lr=torch.scalar_tensor(f0, dtype=torch.float64))

The operators' C++ takes a number, which would make each rate of a schedule a separate graph, or a
tensor.

    torch._foreach_addcdiv_(params, means, norms, [t0, t1])
    ->  torch._foreach_addcdiv_(params, means, norms, torch.stack([t0, t1]))
    ->  torch._foreach_add_(params, torch._foreach_div([means[0] * t0, means[1] * t1], norms))
                                                                for wrapper subclasses

torch.optim computes on step counters as tensors while `is_compiling()` is true. Classes of wrappers
(DTensor) answer these operators for lists of numbers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

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


_ADDING_PRODUCTS = {
    "_foreach_addcmul": torch._foreach_mul,
    "_foreach_addcdiv": torch._foreach_div,
}


def _scaled(function: Any, add: Any, combine: Any) -> Substitute:
    def add_products(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = machine.tape.call_function
        scales: Any = args[3] if len(args) > 3 else kwargs.get("scalars")
        if not (machine.observed_is_compiling and _are_counters(scales)):
            return call(function, args, kwargs)
        targets, first, second = args[:3]
        if not any(is_wrapper_subclass(type(target)) for target in targets):
            if not isinstance(scales, torch.Tensor):
                scales = call(torch.stack, (scales,))
            return call(function, (targets, first, second, scales))
        if isinstance(scales, torch.Tensor):
            scales = call(torch.unbind, (scales,))
        scaled = [call(torch.mul, pair) for pair in zip(first, scales, strict=True)]
        return call(add, (targets, call(combine, (scaled, second))))

    return add_products


def _are_counters(scales: Any) -> bool:
    """Whether numbers are tensors: each one, or all in one."""
    if type(scales) in (list, tuple):
        return len(scales) > 0 and all(_is_on_cpu(scale, 0) for scale in scales)
    return _is_on_cpu(scales, 1)


def _is_on_cpu(tensor: Any, ndim: int) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.ndim == ndim and tensor.device.type == "cpu"


for _name, _combine in _ADDING_PRODUCTS.items():
    for _end in ("", "_"):
        _function, _add = getattr(torch, _name + _end), getattr(torch, f"_foreach_add{_end}")
        substitute_for(_function)(_scaled(_function, _add, _combine))
