"""The default device that a frame sets: named in the calls that it concerns.

    with torch.device("meta"):
        y = torch.ones(3)            ->      y = torch.ones(3, device=device("meta"))

torch does the same by a function mode, which neither the capture nor the graph needs. A mode that
is on when the frame begins works by itself, and is guarded. What the frame leaves set is set once
its graph has run.

Inference mode is really entered while the frame is interpreted, so torch's own checks raise as in
eager, and recorded for the graph. There it is entered and left by calls that no tracer may see into
(`flambeau_capture.graphs.autograd_calls`): what stands between is compiled by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import _device_constructors

from flambeau_capture.graphs.autograd_calls import (
    enter_forward_level,
    enter_inference_mode,
    leave_forward_level,
    leave_inference_mode,
)
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, CallSideEffect, Const
from flambeau_capture.torch_state import Switches

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import Kwargs, RecipeMaker, Recorder
    from flambeau_capture.record import Recipe, SideEffect

_CPU = torch.device("cpu")


class DefaultDevices:
    """The devices of the frame's `with torch.device(...)` blocks, and of `set_default_device`."""

    def __init__(self) -> None:
        self.blocks: list[torch.device] = []
        self.default: torch.device | None = None
        self.is_set = False

    @property
    def inside(self) -> bool:
        """Whether the frame has set any."""
        return self.is_set or bool(self.blocks)

    @property
    def current(self) -> torch.device:
        """The device in force: the CPU without a default, whatever surrounds the frame."""
        return self.blocks[-1] if self.blocks else self.default or _CPU

    def given(self, function: Any, kwargs: Kwargs) -> dict[str, Any]:
        """The keyword arguments of a call, with the device that torch's mode would add."""
        if function not in _device_constructors() or kwargs.get("device") is not None:  # type: ignore[no-untyped-call]
            return kwargs
        return {**kwargs, "device": self.current}

    def side_effects(self) -> list[SideEffect]:
        """What is set when the graph has run."""
        found: list[SideEffect] = []
        if self.is_set:
            found.append(CallSideEffect(torch.set_default_device, (Const(self.default),)))
        enter: Any = torch.device.__enter__  # type: ignore[attr-defined]
        return found + [CallSideEffect(enter, (Const(device),)) for device in self.blocks]


# ---------------------------------------------------------------- inference

_Guard: Any = torch._C._InferenceMode


class InferenceGuard(Proxy):
    """What the frame holds for a `torch._C._InferenceMode`."""

    __slots__ = ("_guard", "enabled", "entered", "machine", "outside")

    def __init__(self, machine: Recorder, enabled: bool) -> None:
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
            detail = "inference modes are left in another order than entered"
            raise GraphBreak("torch-state", detail)
        self.machine.tape.call_untraced(leave_inference_mode)
        guards.pop()
        self.leave()

    def leave(self) -> None:
        """Leave it while capturing, and record nothing."""
        self._guard.__exit__(None, None, None)

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """A guard, which is left if this one is."""
        is_open = self in self.machine.tape.inference_guards
        return CallRecipe(_Guard if is_open else _left_guard, (Const(self.enabled),))


@dataclass(slots=True)
class Blocks:
    """Whether the frame has entered blocks that no graph may end in."""

    entered: bool = False

    def enter(self, machine: Recorder, what: str) -> None:
        """Note that one is entered, or break."""
        if not machine.strategy.enters_blocks or machine.tape.subgraphs:
            raise GraphBreak("torch-state", f"{what} is entered")
        self.entered = True


class ForwardLevel:
    """A level of forward-mode differentiation that the frame has entered, and not left."""

    def __init__(self, machine: Recorder) -> None:
        machine.state_of(Blocks).enter(machine, "a level of forward-mode differentiation")
        self.level: int = torch._C._enter_dual_level()
        machine.tape.record_setting(enter_forward_level, ())
        machine.tape.inference_guards.append(self)

    def leave(self) -> None:
        """Leave it while capturing, and record nothing."""
        torch._C._exit_dual_level(level=self.level)


def forward_levels(machine: Recorder) -> list[ForwardLevel]:
    """The levels that the frame has entered, the outermost first."""
    return [entry for entry in machine.tape.inference_guards if isinstance(entry, ForwardLevel)]


def leave_forward(machine: Recorder) -> None:
    """Leave the innermost level, in the graph too."""
    entry = machine.tape.inference_guards.pop()
    if not isinstance(entry, ForwardLevel):
        raise GraphBreak("torch-state", "inference mode is left later than a level around it")
    machine.tape.record_setting(leave_forward_level, ())
    entry.leave()


def leave_inference_modes(machine: Recorder) -> None:
    """Leave what the frame has entered, when it has been interpreted."""
    guards = machine.tape.inference_guards
    while guards:
        guards.pop().leave()


def reenter_side_effects(
    machine: Recorder, rebuild: RecipeMaker
) -> tuple[list[SideEffect], Switches]:
    """The side effects that enter again, after the graph, what the frame has not left, and the
    switches as they then are.

    Within the graph it is left: the calls that do so are recorded.
    """
    if forward_levels(machine):
        detail = "a graph ends in a level of forward-mode differentiation"
        raise GraphBreak("torch-state", detail)
    found: list[SideEffect] = []
    guards, before = machine.tape.inference_guards, machine.switches
    for guard in guards:
        found += [
            CallSideEffect(setter, tuple(Const(arg) for arg in args))
            for setter, args in guard.outside.settings_from(before)
        ]
        # The guard is made here at the latest.
        found.append(CallSideEffect(_Guard.__enter__, (rebuild.recipe(guard),)))
        before = guard.entered
    for _ in guards:
        machine.tape.call_untraced(leave_inference_mode)
    return found, before


def _left_guard(enabled: bool) -> Any:
    guard = _Guard(enabled)
    guard.__exit__(None, None, None)
    return guard


@substitute_for(_Guard)
def _make_guard(machine: Recorder, args: Any, kwargs: Any) -> Any:
    return InferenceGuard(machine, *args, **kwargs)


@substitute_for(_Guard.__enter__.__func__, _Guard.__exit__.__func__)
def _older_guard(machine: Recorder, args: Any, kwargs: Any) -> Any:
    detail = "inference mode is left that was entered before the graph began"
    raise GraphBreak("torch-state", detail)
