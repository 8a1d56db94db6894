"""Forward-mode differentiation: `torch.autograd.forward_ad`.

    with dual_level():                               enter_forward_level()
        d = make_dual(x, t)                          d = _make_dual(x, t, level=0)
        y = d.sin()                          ->      y = d.sin()
        _, tangent = unpack_dual(y)                  _, tangent = _unpack_dual(y, level=0)
                                                     leave_forward_level()

The level is really entered while the frame is interpreted, so torch computes the tangents of fake
tensors; whoever runs or traces the graph enters it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.torch_calls.contexts import (
    ForwardLevel,
    forward_levels,
    leave_forward,
)

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _current(machine: Machine, level: int | None) -> int:
    if level is not None:
        return level
    levels = forward_levels(machine)
    return levels[-1].level if levels else -1


@substitute_for(forward_ad.enter_dual_level)
def _enter(machine: Machine, args: Any, kwargs: Any) -> int:
    return ForwardLevel(machine).level


@substitute_for(forward_ad.exit_dual_level)
def _exit(machine: Machine, args: Any, kwargs: Any) -> None:
    level = _current(machine, kwargs.get("level"))
    if level != _current(machine, None):
        raise RuntimeError(  # torch's text
            "Trying to exit a forward AD level that was not the last one that was created. "
            "This is not supported."
        )
    leave_forward(machine)


@substitute_for(forward_ad.make_dual, unpacked=True)
def _make_dual(machine: Machine, tensor: Any, tangent: Any, *, level: int | None = None) -> Any:
    level = _current(machine, level)
    if level < 0 or not (_has_tangents(tensor) and _has_tangents(tangent)):
        return forward_ad.make_dual(tensor, tangent)  # for its errors
    forward_ad._maybe_load_decompositions()
    return machine.tape.call_function(torch._VF._make_dual, (tensor, tangent), {"level": level})  # type: ignore[attr-defined]


@substitute_for(forward_ad.unpack_dual, unpacked=True)
def _unpack_dual(machine: Machine, tensor: Any, *, level: int | None = None) -> Any:
    level = _current(machine, level)
    if level < 0:
        return forward_ad.UnpackedDualTensor(tensor, None)
    unpack = torch._VF._unpack_dual  # type: ignore[attr-defined]
    return forward_ad.UnpackedDualTensor(
        *machine.tape.call_function(unpack, (tensor,), {"level": level})
    )


def _has_tangents(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex())
