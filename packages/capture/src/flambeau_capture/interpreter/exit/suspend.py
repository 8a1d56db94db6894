"""A graph break: the frames from the captured function down to the break, as they must be rebuilt
to go on from there.

    def outer(x):              outer   suspended in its call of inner: stack and locals as recipes
        y = x + 1              inner   suspended before `print(y.sum())`, which CPython performs;
        return inner(y) * y            both go on compiled

A frame can be taken up again where its value is just what the instruction of the frame above pushes
(`Frame.in_place`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.bytecode.instructions import NotResumable, after_call, successors
from flambeau_capture.bytecode.resume_code import Layout
from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_capture.interpreter.code.data_flow import live_slots, sees_locals
from flambeau_capture.interpreter.exit.rebuild import Rebuilder
from flambeau_capture.interpreter.exit.side_effects import guard_distinct, side_effects
from flambeau_capture.interpreter.exit.suspended_frame import Original, stack_recipes
from flambeau_capture.interpreter.torch_calls.contexts import reenter_side_effects
from flambeau_capture.interpreter.torch_calls.hooks import hook_side_effects
from flambeau_capture.interpreter.values.lifetimes import may_be_watched
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallSideEffect, Capture, Const, Recipe, SuspendedFrame
from flambeau_capture.torch_state import Switches, nesting_settings

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine
    from flambeau_capture.record import SideEffect
    from flambeau_capture.sources import Source


@dataclass(slots=True)
class Locks:
    """The locks that the frame has taken."""

    sources: dict[Any, Source] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    """Those that it holds now, each as often as it holds it."""


def suspend(machine: Machine, innermost: Frame) -> Capture:
    """The record up to the next instruction of `innermost`; GraphBreak if that is impossible."""
    if machine.positions:
        raise GraphBreak("not-resumable", "a function of positions runs, for all of them at once")
    frames = [innermost]
    while (parent := frames[-1].parent) is not None:
        frames.append(parent)
    if not all(is_resumable(frame) for frame in frames):
        detail = "a frame's value is not just what its caller's instruction pushes"
        raise GraphBreak("not-resumable", detail)
    rebuild = Rebuilder(machine)
    suspended: list[SuspendedFrame] = []
    handling = machine.handling
    for frame in frames:
        made, handling = _suspended(frame, rebuild, handling, is_last=frame is innermost)
        suspended.insert(0, made)
    return finish(machine, rebuild, Const(None), suspended)


_OPERATORS = tuple(
    name
    for name in dir(torch.Tensor)
    if name.startswith("__") and hasattr(operator, name.replace("__r", "__", 1))
) + ("__torch_function__", "__torch_dispatch__", "__bool__", "__len__", "__iter__")
"""What tensors define for Python's operators: the tape holds these as functions of `operator`."""


def finish(
    machine: Machine, rebuild: Rebuilder, result: Recipe, suspended: list[SuspendedFrame]
) -> Capture:
    """The whole record, from the recipes of the result or of the suspended frames."""
    if machine.breaks.dropped is not None:
        raise machine.breaks.dropped
    locks = _locks(machine, suspended)
    guard_distinct(machine)
    # Hooks first, in their order: others may store their handles.
    replayed = hook_side_effects(machine, rebuild)
    replayed += side_effects(machine, rebuild)  # before the guards are listed: it may make some
    replayed += _left_switches(machine, rebuild)
    replayed += machine.tape.devices.side_effects()
    enables_grad = _enables_grad(machine)
    env = machine.tape.env
    machine.tape.unbacked.write_checks()
    if machine.tape.calls:
        for name in _OPERATORS:
            machine.rely_on(torch.Tensor, name)
    return Capture(
        scope=machine.scope,
        calls=machine.tape.calls,
        inputs=machine.tape.inputs,
        guards=list(machine.guards.values()),
        side_effects=replayed,
        result=result,
        size_env=env if env is not None and env.symbols else None,
        torch_state=machine.torch_state,
        unbacked=machine.tape.unbacked.values,
        suspended=suspended,
        enables_grad=enables_grad,
        observed_is_compiling=machine.observed_is_compiling,
        assumptions=tuple(machine.speculation.assumptions),
        locks=locks,
        pinned=tuple(machine.objects.pinned.values()),
        definitions=tuple(machine.definitions.values()),
        of_the_process=machine.of_the_process,
        constants=tuple(machine.constants),
    )


def _locks(machine: Machine, suspended: list[SuspendedFrame]) -> tuple[Source, ...]:
    """The locks to hold around graph and side effects; GraphBreak if that is too long."""
    locks = machine.state_of(Locks)
    if not locks.sources:
        return ()
    if locks.held or suspended:
        raise GraphBreak("not-resumable", "a lock that the frame has taken is to be held in it")
    if any(call.untraced or isinstance(call.target, HigherOrder) for call in machine.tape.calls):
        detail = "a lock is taken by a frame that calls what may want it, too"
        raise GraphBreak("unknown-c-function", detail)
    return tuple(locks.sources.values())


def left_to_interpreter(machine: Machine) -> Capture:
    """The record of an eager call; what was read decides which other calls it serves."""
    env = machine.tape.env
    return Capture(
        scope=machine.scope,
        inputs=list(machine.tape.inputs),
        guards=list(machine.guards.values()),
        size_env=env if env is not None and env.symbols else None,
        torch_state=machine.torch_state,
        eager=True,
    )


def _enables_grad(machine: Machine) -> bool:
    """Whether the call turns gradients on that were off; the tape then records that around it."""
    tape = machine.tape
    setter = torch._C._set_grad_enabled
    if machine.switches.grad_enabled or not any(
        call.target is setter and call.args == (True,) for call in tape.calls
    ):
        return False
    tape.record_setting(setter, (False,))
    tape.calls.insert(0, tape.calls.pop())
    tape.record_setting(setter, (True,))
    return True


def _left_switches(machine: Machine, rebuild: Rebuilder) -> list[SideEffect]:
    """What the frame leaves set, set after the graph; within the graph it is set back."""
    now, before = Switches(), machine.switches
    nesting = machine.tape.autocast_nesting
    guards = machine.tape.inference_guards
    entered, inside = reenter_side_effects(machine, rebuild)
    outside = guards[0].outside if guards else now
    for setter, args in (*nesting_settings(-nesting), *before.settings_from(outside)):
        machine.tape.record_setting(setter, args)
    return entered + [
        CallSideEffect(setter, tuple(Const(arg) for arg in args))
        for setter, args in (*now.settings_from(inside), *nesting_settings(nesting))
    ]


def is_resumable(frame: Frame) -> bool:
    """Whether a frame (and so all above it) can be taken up again."""
    code = frame.code.code_reference()
    return (
        code is not None
        and not frame.code.is_generator
        and frame.namespace is None
        and not sees_locals(code)
        and (frame.parent is None or frame.in_place)
    )


def stop_steps(broken: list[tuple[Frame, int]]) -> list[int]:
    """The steps at which a capture that left these frames may stop, the best first."""
    steps: list[int] = []
    for frame, step in reversed(broken):
        if not is_resumable(frame):
            break
        steps.append(step)
    return steps[::-1]


def _suspended(
    frame: Frame, rebuild: Rebuilder, handling: BaseException | None, *, is_last: bool
) -> tuple[SuspendedFrame, BaseException | None]:
    """One suspended frame, which handles `handling`; and the exception that its caller handles."""
    original = Original(frame)
    decoded, code = original.decoded, original.frame_code.code
    index = original.index(frame.ip if is_last else frame.ip - 1)
    kinds, values, outside = stack_recipes(frame, original, rebuild, handling)
    try:
        following = successors(code, index, kinds) if is_last else (after_call(code, index, kinds),)
    except NotResumable as error:
        raise GraphBreak("not-resumable", str(error)) from error
    handler = decoded.unwinds[index]
    live = set().union(*[live_slots(decoded, item.index) for item in following])
    if is_last:
        live |= live_slots(decoded, index)
    elif handler is not None:
        live |= live_slots(decoded, handler.target)
    bound = original.bound
    held = {slot for slot, value in bound.items() if may_be_watched(value)}
    if is_last:  # references to what is performed are counted as in eager
        held |= {slot for slot in bound if any(bound[slot] is item for item in frame.stack)}
    layout = Layout(tuple(sorted((live & bound.keys()) | held)), kinds)
    kept = set(bound)
    if is_last and decoded.names_at[index] == "DELETE_FAST":
        kept.discard(decoded.instructions[index][1])
    made = SuspendedFrame(
        frame_code=original.frame_code,
        index=index,
        performs=is_last,
        layout=layout,
        keyword_names=frame.keyword_names if is_last else (),
        arguments=original.arguments(layout, values, rebuild),
        following=[
            (
                item,
                Layout(tuple(sorted((live_slots(decoded, item.index) | held) & kept)), item.stack),
            )
            for item in following
        ],
    )
    return made, outside
