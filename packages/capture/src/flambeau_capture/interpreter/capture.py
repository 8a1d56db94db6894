"""`capture_frame`: interpret one call, and hand over the record of it, or why there is none."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.bytecode.resume_code import resumed_from
from flambeau_capture.guards import torch_state
from flambeau_capture.interpreter.branches.speculation import Answers, NeedsObservation
from flambeau_capture.interpreter.code.decode import decode
from flambeau_capture.interpreter.code.liveness import live_slots, sees_locals
from flambeau_capture.interpreter.exit.rebuild import Rebuilder
from flambeau_capture.interpreter.exit.suspend import finish, left_to_interpreter, stop_steps
from flambeau_capture.interpreter.frame import UNBOUND, Frame, Stopped, run
from flambeau_capture.interpreter.machine import Machine
from flambeau_capture.interpreter.opcodes import HANDLERS
from flambeau_capture.interpreter.torch_calls.contexts import leave_inference_modes
from flambeau_capture.interpreter.values.deferred_strings import error_text
from flambeau_capture.interpreter.values.lazy_values import PARTIAL_TYPES, LazyValue
from flambeau_capture.interpreter.values.strategy import DEFAULT_STRATEGY, CaptureStrategy
from flambeau_capture.reasons import REASONS, GraphBreak
from flambeau_capture.record import Break, Capture, defined_at
from flambeau_capture.sources import Argument
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import DynamicDims, Scope


def capture_frame(scope: Scope, options: CaptureOptions, dynamic: DynamicDims) -> Capture | Break:
    """Run the frame of `scope.function` on these arguments, without its side effects, and record
    what it does.

    Where something in it cannot be captured, it is run once more, up to there: the record then says
    how to go on.
    """
    strategy = DEFAULT_STRATEGY
    answers = Answers()
    found, steps, other = _interpret(scope, options, dynamic, strategy, answers)
    while other is not None and not (
        options.fullgraph and other.takes_locks != strategy.takes_locks
    ):
        if other is not strategy:
            strategy, answers = other, Answers()  # it may ask other questions
        found, steps, other = _interpret(scope, options, dynamic, strategy, answers)
    if found.cause is None:
        return found
    if options.fullgraph or found.cause.id in _GIVEN_UP:
        return found.cause
    if found.cause.id in _RUNS_WHOLE:
        steps = []
    too_deep = found.cause.id == "inline-depth"
    if too_deep:
        # What calls itself so often is called from the frame itself, and runs eagerly: a frame that
        # is suspended takes two of the stack's.
        steps = steps[-1:]
    for place, step in enumerate(steps):
        stopped, _, _ = _interpret(scope, options, dynamic, strategy, answers, stop_step=step)
        if stopped.suspended:
            stopped.cause = found.cause
            stopped.needs_hook = not too_deep and (place > 0 or found.cause.id in _MAY_CALL_BACK)
            return stopped
        if stopped.cause is not None and stopped.cause.cause not in found.cause.cause:
            because = f"{found.cause.cause}; it cannot go on from there: {stopped.cause.cause}"
            found.cause = replace(found.cause, cause=because)
    found.needs_hook = found.cause.id not in (
        "compiler-disable",
        "exception-escapes",
        "inline-depth",
    )
    return found


_GIVEN_UP = frozenset({"dynamic-mark", "instruction-limit", "guard-limit"})
"""Reasons behind which no part of the frame is captured."""
_RUNS_WHOLE = frozenset({"call-limit", "traceback"})
"""Reasons for which a frame is left to the interpreter from its start: a loop that is too long
would be so in a second graph, too, and an exception that is rebuilt in the middle of its handling
has no traceback to show.
"""

_MAY_CALL_BACK = frozenset(
    {
        "unknown-c-function",
        "compiler-skip",
        "higher-order-operator",
        "autograd-function",
        "unstable-iteration",
    }
)
"""Reasons behind which functions of the program may run that could be captured themselves."""


def _interpret(
    scope: Scope,
    options: CaptureOptions,
    dynamic: DynamicDims,
    strategy: CaptureStrategy = DEFAULT_STRATEGY,
    answers: Answers | None = None,
    *,
    stop_step: int = 0,
) -> tuple[Capture, list[int], CaptureStrategy | None]:
    """The record up to `stop_step` (0: of the whole frame), and, if it has a `cause`, the steps in
    front of which it could end, or the strategy in which to interpret the frame instead: the same
    where `answers` has another one.
    """
    answers = answers or Answers()
    device = _main_device(scope.arguments)
    machine = Machine(scope, options, dynamic, device, strategy, stop_step, answers)
    first_line = defined_at(scope.function)
    broken: Break | None = None
    needs_observation: NeedsObservation | None = None
    try:
        with machine.tape.tracer:
            try:
                return _capture(machine, scope), [], None
            finally:
                leave_inference_modes(
                    machine
                )  # before the tracer is left, which it was entered under
    except Stopped:
        assert machine.suspended is not None
        if isinstance(machine.suspended, Capture):
            return machine.suspended, [], None
        broken = machine.suspended.to_break(machine.where or first_line)
    except GraphBreak as error:
        needs_observation = error if isinstance(error, NeedsObservation) else None
        broken = error.to_break(machine.break_where or machine.where or first_line)
    except Unsupported as error:
        id = error.reason if error.reason in REASONS else "operator-unsupported"
        broken = GraphBreak(id, error.text, hint=error.hint).to_break(
            machine.break_where or first_line
        )
    except Exception as error:
        text = error_text(error)
        detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
        broken = GraphBreak("exception-escapes", detail).to_break(machine.error_where or first_line)
    finally:
        machine.switches.restore(machine.tape.autocast_nesting)
        raised = broken is not None and (
            broken.id == "exception-escapes" or machine.handling is not None
        )
        other = None
        if raised and machine.observed_is_compiling:
            # Where it is told that it is compiled it raises: it is to go the way that it goes
            # eagerly.
            other = replace(strategy, compiling=False)
        elif needs_observation is not None:
            answers.find(machine.tape, needs_observation.asked_at, needs_observation.wanted)
            other = strategy
        elif machine.locks:
            other = replace(strategy, takes_locks=False)
        elif broken is not None and machine.shown_history and not options.fullgraph:
            other = replace(strategy, shows_history=False)
        machine.speculation.detach(machine.tape.env)
        if machine.tape.env is not None:
            machine.tape.env.refuse = None
        steps = stop_steps(machine.broken)
        eager = left_to_interpreter(machine)
        machine.dissolve()
    eager.cause = broken
    return eager, steps, other


def _capture(machine: Machine, scope: Scope) -> Capture:
    function = scope.function
    code = decode(function.__code__, HANDLERS)
    if code.is_generator:
        raise GraphBreak(
            "generator-frame", f"{function.__qualname__} is a generator or coroutine function"
        )
    values: list[Any] = [UNBOUND] * code.n_locals
    used = live_slots(code, 0)
    resumed = resumed_from(function.__code__) is not None
    seen = sees_locals(function.__code__)
    for index, value in enumerate(scope.arguments):
        source = Argument(code.local_names[index], index)
        if resumed and type(value) is not types.CellType:
            under = scope.arguments[index - 1] if index else None
            for_append = type(value) is list and under in (list.append, list.extend)
            values[index] = LazyValue(value, source, for_append=for_append)
        elif type(value) in PARTIAL_TYPES or (index not in used and not seen):
            values[index] = LazyValue(value, source)
        else:
            values[index] = machine.objects.wrap(value, source)
    frame = Frame(machine, code, function, values, None)
    for name in torch_state.implied_extras():
        machine.depend_on_state(name)
    run(frame)
    rebuild = Rebuilder(machine)
    machine.frame = frame
    frame.locals.clear()  # which closes the generators in them
    return finish(machine, rebuild, rebuild.recipe(frame.value), [])


def _main_device(arguments: tuple[Any, ...]) -> torch.device:
    """The device that the program mainly runs on: the first accelerator among the arguments'
    tensors and modules' parameters.
    """
    pending = list(arguments)
    seen: set[int] = set()
    for value in pending:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                return value.device
        elif isinstance(value, torch.nn.Module):
            # Its own tables: `parameters()` may be the program's, and a module may be half made.
            for table in ("_parameters", "_modules"):
                pending.extend((value.__dict__.get(table) or {}).values())
        elif isinstance(value, (list, tuple)) and len(pending) < 1000:
            pending.extend(
                list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
            )
        elif type(value) is dict and len(pending) < 1000:
            pending.extend(value.values())
    return torch.device("cpu")
