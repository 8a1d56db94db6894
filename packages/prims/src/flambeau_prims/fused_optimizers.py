"""Fused optimizer steps as what they compute, so that their arithmetic is in kernels of ours.

    aten._fused_sgd_(params, grads, [], lr=0.1, ...)  ->  for p, g: p.copy_(p - 0.1 * g)

Such an operator takes lists of tensors and writes to them. It computes in the precision of float32
at least, divides gradients by `grad_scale` and stores them so, and writes nothing where `found_inf`
is 1.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Update = Callable[..., Sequence[Tensor | None]]
    """(options, parameter, gradient, states...) -> the new parameter and states, or None."""

aten = torch.ops.aten


def fused_step(op: Any) -> Callable[..., None] | None:
    """The step that an overload makes, as calls of other operators; None for other overloads."""
    update = _UPDATES.get(op._schema.name)
    return None if update is None else partial(_step, update)


def _step(
    update: Update,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    *states: Sequence[Tensor],
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    maximize: bool = False,
    **options: Any,
) -> None:
    for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
        given = [param, *(state[index] if state else None for state in states)]
        wide = [None if x is None else _wide(x) for x in given]
        scaled = None if grad_scale is None else _wide(grad) / grad_scale
        direction = _wide(grad) if scaled is None else scaled
        if maximize:
            direction = -direction
        results = update(options, wide[0], direction, *wide[1:])
        for target, new in zip([grad, *given], [scaled, *results], strict=False):
            if target is None or new is None:
                continue
            if found_inf is not None:
                new = torch.where(found_inf == 1, _wide(target), new)
            target.copy_(new)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _adam(
    options: dict[str, Any], param: Tensor, grad: Tensor, mean: Tensor, square: Tensor,
    most: Tensor | None, step: Tensor, *, decoupled: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    lr, beta1, beta2, decay = (options[name] for name in ("lr", "beta1", "beta2", "weight_decay"))
    if decay and decoupled:
        param = param - lr * decay * param
    elif decay:
        grad = grad + param * decay
    mean = torch.lerp(mean, grad, 1 - beta1)
    square = square * beta2 + (1 - beta2) * grad * grad
    steps = step.to(torch.float64)
    size = (lr / (1 - beta1**steps)).to(param.dtype)
    correction = (1 - beta2**steps).sqrt().to(param.dtype)
    if options["amsgrad"]:
        assert most is not None
        most = torch.maximum(most, square)
    root = (square if most is None or not options["amsgrad"] else most).sqrt()
    param = param - size * mean / (root / correction + options["eps"])
    return param, mean, square, most if options["amsgrad"] else None


def _sgd(
    options: dict[str, Any], param: Tensor, grad: Tensor, momentum: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    if options["weight_decay"]:
        grad = grad + param * options["weight_decay"]
    if options["momentum"]:
        assert momentum is not None
        if options["is_first_step"]:
            momentum = grad
        else:
            momentum = momentum * options["momentum"] + grad * (1 - options["dampening"])
        grad = grad + momentum * options["momentum"] if options["nesterov"] else momentum
    return param - options["lr"] * grad, momentum


def _adagrad(
    options: dict[str, Any], param: Tensor, grad: Tensor, total: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    if options["weight_decay"]:
        grad = grad + param * options["weight_decay"]
    rate = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    total = total + grad * grad
    return param - rate * grad / (total.sqrt() + options["eps"]), total


_UPDATES: dict[str, Update] = {
    "aten::_fused_adam_": partial(_adam, decoupled=False),
    "aten::_fused_adamw_": partial(_adam, decoupled=True),
    "aten::_fused_sgd_": _sgd,
    "aten::_fused_adagrad_": _adagrad,
}
