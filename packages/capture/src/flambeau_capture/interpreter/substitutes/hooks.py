"""`Tensor.register_hook` and its kin, and the node by which modules' full backward hooks see gradients (interpreter/hooks.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.hooks import note
from flambeau_capture.interpreter.substitutes.registry import substitute_for

if TYPE_CHECKING:
    from flambeau_capture.interpreter.hooks import HookHandle
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitutes.registry import Substitute


def _registering(method: Any) -> Substitute:
    def register(machine: Machine, args: Any, kwargs: Any) -> HookHandle:
        given: list[Any] = [*args, *kwargs.values()]
        tensor, hook = given
        method(tensor, hook).remove()  # for its errors: the fake tensor has no backward of its own
        return note(machine, method, (tensor, hook))

    return register


for _method in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
    substitute_for(_method)(_registering(_method))


@substitute_for(torch.Tensor.retain_grad)
def _retain_grad(machine: Machine, args: Any, kwargs: Any) -> None:
    (tensor,) = args
    torch.Tensor.retain_grad(tensor)
    if not tensor.is_leaf:
        note(machine, torch.Tensor.retain_grad, (tensor,))
