"""Inference mode in a captured frame: really entered while the frame is interpreted, and recorded for the graph.

What the frame makes inside are inference tensors to torch's own checks, which raise as they do in eager.  Inside a graph the mode is
entered and left by calls that no tracer may see through (`flambeau_capture.inference_mode`): what stands between is compiled by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.inference_mode import enter_inference_mode, leave_inference_mode
from flambeau_capture.interpreter.classes import Native
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.interpreter.switches import Switches
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallEffect, CallRecipe, Const

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.rebuild import Rebuilder
    from flambeau_capture.record import Effect, Recipe

_Guard: Any = torch._C._InferenceMode


class InferenceGuard(Native):
    """What the frame holds for a `torch._C._InferenceMode`."""

    __slots__ = ("_guard", "enabled", "entered", "machine", "outside")

    def __init__(self, machine: Machine, enabled: bool) -> None:
        self.machine = machine
        self.enabled = bool(enabled)
        self.outside = Switches()
        machine.tape.call_untraced(enter_inference_mode, (self.enabled,))
        self._guard = _Guard(self.enabled)
        self.entered = Switches()
        machine.tape.inference_guards.append(self)

    def __enter__(self) -> None:
        """Nothing: torch enters the mode when it makes a guard."""

    def __exit__(self, *error: object) -> None:
        guards = self.machine.tape.inference_guards
        if not guards or guards[-1] is not self:
            raise GraphBreak(
                "torch-state", "inference modes are left in another order than entered"
            )
        self.machine.tape.call_untraced(leave_inference_mode)
        guards.pop()
        self.leave()

    def leave(self) -> None:
        """Leave it while capturing, and record nothing."""
        self._guard.__exit__(None, None, None)

    def recipe(self, rebuild: Rebuilder) -> Recipe:
        """A guard, which is left if this one is."""
        is_open = self in self.machine.tape.inference_guards
        return CallRecipe(_Guard if is_open else _left_guard, (Const(self.enabled),))


def leave_inference_modes(machine: Machine) -> None:
    """Leave what the frame has entered, when it has been interpreted."""
    guards = machine.tape.inference_guards
    while guards:
        guards.pop().leave()


def reenter_effects(machine: Machine, rebuild: Rebuilder) -> tuple[list[Effect], Switches]:
    """The effects that enter again, after the graph, what the frame has not left, and the switches as they then are.

    Within the graph it is left: the calls that do so are recorded.
    """
    found: list[Effect] = []
    guards, before = machine.tape.inference_guards, machine.switches
    for guard in guards:
        found += [
            CallEffect(setter, tuple(Const(arg) for arg in args))
            for setter, args in guard.outside.settings_from(before)
        ]
        found.append(
            CallEffect(_Guard.__enter__, (rebuild.recipe(guard),))
        )  # made here at the latest
        before = guard.entered
    for _ in guards:
        machine.tape.call_untraced(leave_inference_mode)
    return found, before


def _left_guard(enabled: bool) -> Any:
    guard = _Guard(enabled)
    guard.__exit__(None, None, None)
    return guard


@substitute_for(_Guard)
def _make_guard(machine: Machine, args: Any, kwargs: Any) -> Any:
    return InferenceGuard(machine, *args, **kwargs)


@substitute_for(_Guard.__enter__.__func__, _Guard.__exit__.__func__)
def _older_guard(machine: Machine, args: Any, kwargs: Any) -> Any:
    raise GraphBreak(
        "torch-state", "inference mode is left that was entered before the graph began"
    )
