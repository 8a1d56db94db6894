"""Guards that keep calls from `__torch_dispatch__` and from function transforms.

    with no_dispatch(), torch._C._DisableFuncTorch():       as without
        state = torch.get_rng_state()

Plain tensors outside function transforms know neither, so the guards change nothing there. Where
one would, it is a graph break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


class DispatchGuard(Proxy):
    """What stands for a guard: it ends when it is left, or dropped."""

    __slots__ = ("__weakref__",)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


@substitute_for(torch._C._DisableTorchDispatch)
def _disable_dispatch(machine: Machine, args: Any, kwargs: Any) -> DispatchGuard:
    guard = DispatchGuard()
    machine.tape.dispatch_guards.add(guard)
    return guard


@substitute_for(torch._C._DisableFuncTorch)
def _disable_transforms(machine: Machine, args: Any, kwargs: Any) -> DispatchGuard:
    if machine.transforms:
        raise GraphBreak("higher-order-operator", "a function transform is switched off in itself")
    return DispatchGuard()
