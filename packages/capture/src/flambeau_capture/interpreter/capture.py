"""`capture_frame`: interpret one call, and hand over the record of it, or why there is none."""

from __future__ import annotations

import types
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_capture import torch_state
from flambeau_capture.bytecode.resume_code import resumed_from
from flambeau_capture.interpreter import calling
from flambeau_capture.interpreter.branches.speculation import Answers, NeedsObservation, Speculation
from flambeau_capture.interpreter.code.data_flow import live_slots, sees_locals
from flambeau_capture.interpreter.code.decode import decode
from flambeau_capture.interpreter.exit.rebuild import Rebuilder
from flambeau_capture.interpreter.exit.suspend import (
    Locks,
    finish,
    left_to_interpreter,
    stop_steps,
    suspend,
)
from flambeau_capture.interpreter.frame import UNBOUND, Stopped, run
from flambeau_capture.interpreter.machine import Frame, Machine, Operations
from flambeau_capture.interpreter.opcodes import HANDLERS
from flambeau_capture.interpreter.protocols import DEFAULT_STRATEGY, CaptureStrategy
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import WrittenDicts
from flambeau_capture.interpreter.substitutes import user_overrides
from flambeau_capture.interpreter.substitutes.lazy_modules import NeedsInitialization
from flambeau_capture.interpreter.torch_calls.contexts import Blocks, leave_inference_modes
from flambeau_capture.interpreter.values.deferred_strings import ShownTensors, error_text
from flambeau_capture.interpreter.values.lazy_values import PARTIAL_TYPES, LazyValue
from flambeau_capture.interpreter.values.numbers import leave_context
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Break, Capture, defined_at
from flambeau_capture.sources import Argument
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import DynamicDims, GraphValue, Guard, Scope


@dataclass(frozen=True)
class Captured:
    """The frame was interpreted to its end."""

    record: Capture


@dataclass(frozen=True)
class Suspended:
    """The frame was interpreted up to `stop_step`; the record says how to go on."""

    record: Capture


@dataclass(frozen=True)
class Retry:
    """Another attempt may capture what this one could not."""

    attempt: Attempt


@dataclass(frozen=True)
class Broken:
    """The frame cannot be interpreted to its end.

    `eager` is the record of a call that is left to the interpreter. The frame may be suspended in
    front of each of `stop_steps`, the best first. `is_inside`: it broke in a frame that cannot be
    resumed, as those are that run a module's hooks; one of the steps calls it. Under other
    `conditions` it might not break.
    """

    cause: Break
    eager: Capture
    stop_steps: tuple[int, ...]
    is_inside: bool
    conditions: tuple[Guard, ...] = ()


Outcome: TypeAlias = Captured | Suspended | Retry | Broken


@dataclass(frozen=True)
class Attempt:
    """One interpretation of a frame, up to `stop_step` (0: to its end).

    `answers` are the observations of earlier attempts, and grow.
    """

    scope: Scope
    options: CaptureOptions
    dynamic: DynamicDims
    strategy: CaptureStrategy = DEFAULT_STRATEGY
    answers: Answers = field(default_factory=Answers)
    stop_step: int = 0

    def with_strategy(self, **changes: Any) -> Retry:
        """Start over with another strategy, without answers: it may ask other questions."""
        return Retry(replace(self, strategy=replace(self.strategy, **changes), answers=Answers()))


def capture_frame(scope: Scope, options: CaptureOptions, dynamic: DynamicDims) -> Capture | Break:
    """Run the frame of `scope.function` on these arguments, without its side effects, and record
    what it does.

    Each outcome of an attempt leads to the next:

    - Captured: done.
    - Retry: the attempt in it. It has another strategy (where the frame raises because
      `is_compiling()` is true, takes a lock, or shows a tensor's history), or one answer more.
    - Broken: done with `fullgraph` and for reasons behind which nothing is captured. Else the same
      attempt with each of its `stop_steps` in turn, which does not retry.
    - Suspended: done. If no attempt is suspended, the call is left to the interpreter.
    """
    attempt = Attempt(scope, options, dynamic)
    while isinstance(outcome := interpret(attempt), Retry):
        attempt = outcome.attempt
    if isinstance(outcome, Broken):
        if options.fullgraph or outcome.cause.id in _GIVEN_UP:
            return outcome.cause
        return _up_to_break(attempt, outcome)
    return outcome.record


def _up_to_break(attempt: Attempt, broken: Broken) -> Capture:
    """The record up to the first step where the frame can be suspended, or of an eager call."""
    cause, steps = broken.cause, broken.stop_steps
    too_deep = cause.id == "inline-depth"
    if cause.id in _RUNS_WHOLE:
        steps = ()
    elif too_deep:
        # What calls itself so often is called from the frame itself, and runs eagerly: a frame that
        # is suspended takes two of the stack's.
        steps = steps[-1:]
    for attempts, step in enumerate(steps):
        outcome = interpret(replace(attempt, stop_step=step))
        if isinstance(outcome, Suspended):
            outcome.record.cause = cause
            outcome.record.guards.extend(broken.conditions)
            may_call_back = attempts > 0 or broken.is_inside or cause.id in _MAY_CALL_BACK
            outcome.record.needs_hook = may_call_back and not too_deep
            return outcome.record
        if isinstance(outcome, Broken) and outcome.cause.cause not in cause.cause:
            because = f"{cause.cause}; it cannot go on from there: {outcome.cause.cause}"
            cause = replace(cause, cause=because)
    broken.eager.cause = cause
    broken.eager.needs_hook = cause.id not in _RUNS_NOTHING_ELSE
    return broken.eager


_GIVEN_UP = frozenset({"dynamic-mark", "instruction-limit", "guard-limit"})
"""Reasons behind which no part of the frame is captured."""
_RUNS_WHOLE = frozenset({"call-limit", "traceback"})
"""Reasons that leave a frame to the interpreter from its start.

A loop that is too long is too long in a second graph, too. An exception that is rebuilt while it is
handled has no traceback to show.
"""
_RUNS_NOTHING_ELSE = frozenset({"compiler-disable", "exception-escapes", "inline-depth"})
"""Reasons for which the frames that an eager call reaches are not captured either."""
_MAY_CALL_BACK = frozenset({
    "unknown-c-function", "compiler-skip", "higher-order-operator", "autograd-function",
    "unstable-iteration", "distributed",
})  # fmt: skip
"""Reasons behind which functions of the program may run that could be captured themselves."""


def interpret(attempt: Attempt) -> Outcome:
    """Make one attempt."""
    device = _main_device(attempt.scope.arguments)
    operations = Operations(
        call=calling.call,
        interpret=calling.call_function,
        load=load_attr,
        suspend=suspend,
        speculation=lambda machine: Speculation(machine, attempt.answers),
        handlers=HANDLERS,
        user_overrides=user_overrides(),
    )
    machine = Machine(
        attempt.scope,
        attempt.options,
        attempt.dynamic,
        operations,
        device,
        attempt.strategy,
        attempt.stop_step,
    )
    try:
        return _outcome(attempt, machine)
    finally:
        env = machine.tape.env
        machine.speculation.detach(env)
        if env is not None:
            env.refuse = None
        machine.tape.release_fake_masks()
        machine.dissolve()


def _outcome(attempt: Attempt, machine: Machine) -> Outcome:
    question: tuple[str, Sequence[GraphValue]] | None = None
    unmade: NeedsInitialization | None = None
    conditions: tuple[Guard, ...] = ()
    try:
        with machine.tape.tracer:
            try:
                return Captured(_capture(machine, attempt.scope))
            finally:
                leave_inference_modes(machine)  # under the tracer, as they were entered
    except Stopped:
        assert machine.suspended is not None
        if isinstance(machine.suspended, Capture):
            return Suspended(machine.suspended)
        cause = _cause(machine, machine.suspended)
    except (GraphBreak, Exception) as error:
        cause = _cause(machine, error)
        if isinstance(error, GraphBreak):
            conditions = error.conditions
        if isinstance(error, NeedsObservation):
            question = error.asked_at, error.wanted
        if isinstance(error, NeedsInitialization):
            unmade = error
    finally:
        machine.switches.restore(machine.tape.autocast_nesting)
        leave_context(machine)
    if not attempt.stop_step and unmade is not None:
        unmade.initialize()
        return Retry(replace(attempt, answers=Answers()))
    if not attempt.stop_step and (retry := _retry(attempt, machine, cause, question)) is not None:
        return retry
    frames = machine.breaks.frames
    steps = tuple(stop_steps(frames))
    inside = len(steps) < len(frames)
    return Broken(cause, left_to_interpreter(machine), steps, inside, conditions)


def _cause(machine: Machine, error: BaseException) -> Break:
    """Why an interpretation ended, and where."""
    start = defined_at(machine.scope.function)
    if isinstance(error, GraphBreak):
        return error.to_break(machine.breaks.where or machine.where or start)
    if isinstance(error, Unsupported):
        return GraphBreak.of_unsupported(error).to_break(machine.breaks.where or start)
    text = error_text(error)
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return GraphBreak("exception-escapes", detail).to_break(machine.breaks.error_where or start)


def _retry(
    attempt: Attempt,
    machine: Machine,
    cause: Break,
    question: tuple[str, Sequence[GraphValue]] | None,
) -> Retry | None:
    """The attempt to make next; None where none may do better."""
    raised = cause.id == "exception-escapes" or machine.handling is not None
    if raised and machine.observed_is_compiling:
        # It raises because `is_compiling()` was true: try the way that it goes eagerly.
        return attempt.with_strategy(compiling=False)
    if question is not None:
        machine.speculation.observe(*question)
        return Retry(attempt)
    known = attempt.strategy.whole_dicts
    written = frozenset(map(id, machine.state_of(WrittenDicts).found))
    if not written <= known:
        return attempt.with_strategy(whole_dicts=known | written)
    if not attempt.options.fullgraph:
        if machine.state_of(Locks).sources:
            return attempt.with_strategy(takes_locks=False)
        if machine.state_of(Blocks).entered:
            return attempt.with_strategy(enters_blocks=False)
        if machine.state_of(ShownTensors).history:
            return attempt.with_strategy(shows_history=False)
    return None


def _capture(machine: Machine, scope: Scope) -> Capture:
    function = scope.function
    code = decode(function.__code__, HANDLERS)
    if code.is_generator:
        detail = f"{function.__qualname__} is a generator or coroutine function"
        raise GraphBreak("generator-frame", detail)
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
    """The first accelerator among the arguments' tensors and modules' parameters; else the CPU."""
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
            base: Any = list if isinstance(value, list) else tuple
            pending.extend(base.__iter__(value))
        elif type(value) is dict and len(pending) < 1000:
            pending.extend(value.values())
    return torch.device("cpu")
