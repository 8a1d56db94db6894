"""Branches on data that exist only when the graph runs.

If one way only raises, the other is taken, and a check is recorded:

if not torch.isfinite(x).all():              all_1 = isfinite.all()
    raise ValueError("not finite")     ->    _assert_async(all_1)
return x.log()                               log = x.log()

If the check fails as the graph runs, the call is replayed eagerly in the interpreter
(`entries/eager_replay.py`), which raises what the program raises. The check is the host's: of an
accelerator's tensor it waits, as the program's own `if` does.

Other questions are answered as they are on the call being captured:

    if x.max() > 0:                 gt = x.max() > 0            true on this call (observation.py)
        x = x.log()           ->    _assert_async(gt, "...")    checks that as the graph runs
    return x                        return x.log()              so the branch is taken

If the check fails, the call uses another entry or is recompiled for the other way
(`entries/eager_replay.py`, `compiled.py`). The second time the line is blocklisted: from then on it
is a graph break. If the frame must be captured whole, both ways keep their graphs.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from flambeau_capture.bytecode.instructions import ENDS
from flambeau_capture.interpreter.branches.observation import Failure, Observation, is_repeatable
from flambeau_capture.interpreter.code.data_flow import following, reachable
from flambeau_capture.interpreter.semantics.operators import truth
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Assumption
from flambeau_capture.torch_state import Switches, nesting_settings
from flambeau_prims.fake import FakeTensor
from flambeau_prims.size_floats import Condition, expect, is_unbacked
from flambeau_prims.size_oracle import Oracle
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flambeau_capture.interpreter.code.decode import DecodedCode
    from flambeau_capture.interpreter.machine import Frame, Machine
    from flambeau_capture.record import GraphValue
    from flambeau_prims.sizes import SizeEnv


def branch(frame: Frame, condition: Any, if_true: int, if_false: int) -> bool:
    """The truth of the condition of a jump that goes on at one of these two instructions."""
    machine = frame.machine
    # An exception that a `try` awaits is one of the program's ordinary ways.  What a backward
    # raises does not reach the call that could run again.
    if not is_in_data(condition) or machine.backwards or frame.is_in_block(with_too=False):
        return truth(machine, condition)
    raises = only_raises(frame.code, if_true), only_raises(frame.code, if_false)
    if True in raises and not is_repeatable(machine.tape):
        return truth(machine, condition)
    if raises == (False, True):
        return _assume(machine, condition, holds=True)
    if raises == (True, False):
        return _assume(machine, condition, holds=False)
    return truth(machine, condition)


def as_condition(frame: Frame, value: Any) -> bool:
    """The truth of a value; before a jump, as `branch` decides (CPython 3.13 converts first)."""
    if is_in_data(value):
        name, target = frame.code.names_at[frame.ip], frame.code.instructions[frame.ip][1]
        if name == "POP_JUMP_IF_TRUE":
            return branch(frame, value, target, frame.ip + 1)
        if name == "POP_JUMP_IF_FALSE":
            return branch(frame, value, frame.ip + 1, target)
    return truth(frame.machine, value)


def is_in_data(condition: Any) -> bool:
    """Whether the truth of a value is known only when the graph runs, and can be checked there."""
    if type(condition) is torch.SymBool:
        return is_unbacked(from_symbolic(condition))
    return (
        type(condition) is FakeTensor
        and condition.spec.numel == 1
        and condition.contents is None
        and condition.device.type != "meta"
    )


def only_raises(code: DecodedCode, index: int) -> bool:
    """Whether every path from an instruction ends in a `raise` that leaves its block."""
    return all(
        code.unwinds[at] is code.unwinds[index]
        if code.names_at[at] == "RAISE_VARARGS"
        else code.names_at[at] not in ENDS and code.names_at[at] not in _SUSPENDS
        for at in reachable(code, [index])
    )


_SUSPENDS = frozenset({"YIELD_VALUE", "SEND", "RETURN_GENERATOR"})


def _assume(machine: Machine, condition: Any, *, holds: bool) -> bool:
    if type(condition) is torch.SymBool:
        inner = from_symbolic(condition)
        as_assumed = expect(inner if holds else Condition("not", inner))
        machine.tape.unbacked.write_checks()
        return holds if as_assumed else not holds
    check(machine, condition, f"{machine.where}: the program raises here", holds=holds)
    return holds


def check(machine: Machine, condition: Any, text: str, *, holds: bool = True) -> None:
    """Record a check that a tensor of one element is true (or false, without `holds`): where it is
    not, the graph raises with this text.

    The check is the host's, whatever device the tensor is on: the copy waits for what computes it,
    as the program's own `if` does. A check on an accelerator itself would end the process.
    """
    tape = machine.tape
    if condition.dtype is not torch.bool:
        condition = tape.call_function(torch.ne, (condition, 0))
    if not holds:
        condition = tape.call_function(torch.logical_not, (condition,))
    if not condition.is_cpu:
        condition = tape.call_method("to", (condition, "cpu"))
    tape.call_function(torch._assert_async, (condition, text))


# ---------------------------------------------------------------- speculation

MOST_CALLS = 200_000
"""So many calls of the graph are made to answer the questions of one frame."""


class Answers:
    """Where a frame asked something, and what was found, in order; None: nothing may be assumed
    there.

    Kept while the frame is interpreted several times: each time gets the same answers.
    """

    def __init__(self) -> None:
        self._given: list[tuple[str, tuple[Any, ...] | Failure | None]] = []
        self._calls = 0

    def known(self, at: int, where: str) -> bool:
        """Whether question `at`, which is asked at this line, was answered before."""
        if at < len(self._given) and self._given[at][0] == where:
            return True
        del self._given[at:]
        return False

    def __getitem__(self, at: int) -> tuple[Any, ...] | Failure | None:
        return self._given[at][1]

    @property
    def exhausted(self) -> bool:
        """Whether no more questions are answered."""
        return self._calls > MOST_CALLS

    def find(self, observation: Observation, where: str, wanted: Sequence[GraphValue]) -> None:
        """Answer the next question: what these values are."""
        self._calls += observation.pending + 1
        self._given.append((where, observation.observe(wanted)))


class NeedsObservation(GraphBreak):
    """A question from inside a call of torch: the frame is interpreted again with the answer."""

    def __init__(self, where: str, wanted: Sequence[GraphValue]) -> None:
        super().__init__("data-dependent", f"{where} asks what is in a tensor")
        self.asked_at = where
        self.wanted = wanted


class Speculation:
    """What one capture assumes of data; `answers` come from earlier interpretations and grow."""

    def __init__(self, machine: Machine, answers: Answers | None = None) -> None:
        self._machine = machine
        self._answers = answers or Answers()
        self._observation: Observation | None = None
        self._asked = 0
        self._numbers: dict[str, int | float] = {}
        """What the unbacked numbers are that have been asked for."""
        self.assumptions: dict[Assumption, None] = {}
        """What is checked in the graph, in order."""

    def attach(self, env: SizeEnv | None) -> None:
        """Answer what is asked of unbacked numbers of `env`."""
        if env is not None and self._machine.options.speculate:
            env.oracle = Oracle(env, self._tell)

    def truth(self, condition: torch.Tensor) -> bool | None:
        """The truth of a tensor of one element, assumed from now on; None if it may not be."""
        machine = self._machine
        found = self._look([machine.tape.value_of(condition)])
        if found is None:
            return None
        holds = bool(found[0])
        assumption = Assumption(machine.where, f"that a condition is {holds}")
        self.note(assumption)
        check(machine, condition, assumption.violation, holds=holds)
        return holds

    def observe(self, where: str, wanted: Sequence[GraphValue]) -> None:
        """Answer the question that was asked at a line: what these values are."""
        if self._observation is None:
            self._observation = Observation(self._machine.tape)
        self._answers.find(self._observation, where, wanted)

    def note(self, assumption: Assumption) -> None:
        """Note what a check is recorded of."""
        self.assumptions[assumption] = None

    def detach(self, env: SizeEnv | None) -> None:
        """Answer no more: the capture is over."""
        if env is not None:
            env.oracle = None

    def _tell(self, names: set[str]) -> Mapping[str, int | float] | None:
        """What an Oracle asks: the values of unbacked numbers by name."""
        values = self._machine.tape.unbacked.values
        if not names <= values.keys():
            return None  # the call that defines them is not recorded yet
        if not self._applies(self._machine.where):
            return None
        if not names <= self._numbers.keys():
            # All that the graph so far defines, in one run: programs that ask of one number ask of
            # others, too.
            wanted = [name for name in values if name not in self._numbers]
            found = self._look([values[name] for name in wanted])
            if found is None:
                return None
            self._numbers.update(zip(wanted, found, strict=True))
        return {name: self._numbers[name] for name in names}

    def _look(self, wanted: list[GraphValue]) -> tuple[Any, ...] | None:
        where = self._machine.where
        if not self._applies(where):
            return None
        at = self._asked
        self._asked += 1
        if not self._answers.known(at, where):
            if self._answers.exhausted:
                return None
            if not self._between_calls():
                raise NeedsObservation(where, wanted)
            with self._aside():
                self.observe(where, wanted)
        found = self._answers[at]
        if not isinstance(found, Failure):
            return found
        if self._machine.options.fullgraph and not self._in_block():
            raise GraphBreak("exception-escapes", found.text)
        return None

    def _in_block(self) -> bool:
        frame = self._machine.frame
        return frame is not None and frame.is_in_block()

    def _applies(self, where: str) -> bool:
        """Whether the data at a line may be asked for."""
        machine = self._machine
        options = machine.options
        if not options.speculate or options.exporting:
            return False
        if machine.tape.subgraphs or machine.transforms or machine.backwards:
            return False
        if not options.fullgraph and (
            where in machine.dynamic.blocklisted or _in_open_loop(machine.frame)
        ):
            return False
        return is_repeatable(machine.tape)

    def _between_calls(self) -> bool:
        """Whether the interpreter itself asks: no call of torch, with its state, is under way."""
        tape = self._machine.tape
        return (
            _get_current_dispatch_mode() is tape.tracer
            and torch._C._len_torch_function_stack() == 0
            and not tape.inference_guards
        )

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """A block outside of the tracer, in the state of torch that the call began in."""
        machine = self._machine
        tape, now = machine.tape, Switches()
        tape.tracer.__exit__(None, None, None)
        try:
            machine.switches.restore(tape.autocast_nesting)
            yield
        finally:
            for step, args in nesting_settings(tape.autocast_nesting):
                step(*args)
            for write, args in now.settings_from(Switches()):
                write(*args)
            tape.tracer.__enter__()


_COUNTED_LOOPS = frozenset({"FOR_ITER"})


def _in_open_loop(frame: Frame | None) -> bool:
    """Whether a frame, or one of its callers, is in a loop whose trip count is in the data."""
    while frame is not None:
        index = frame.ip - 1
        if index in reachable(frame.code, following(frame.code, index), _COUNTED_LOOPS):
            return True
        frame = frame.parent
    return False
