"""Branches on data of which one way only raises: the other is taken, and a check is recorded.

if not torch.isfinite(x).all():              all_1 = isfinite.all()
    raise ValueError("not finite")     ->    _assert_async(all_1)
return x.log()                               log = x.log()

Where the check fails as the graph runs, the call is replayed eagerly in the interpreter
(`entries/eager_replay.py`), which raises what the program raises. The check is the host's: of an
accelerator's tensor it waits, as the program's own `if` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.bytecode.instructions import ENDS
from flambeau_capture.interpreter.branches.observation import is_repeatable
from flambeau_capture.interpreter.code.liveness import following
from flambeau_capture.interpreter.semantics.operators import truth
from flambeau_prims.fake import FakeTensor
from flambeau_prims.size_floats import Condition, expect, is_unbacked
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.code.decode import DecodedCode
    from flambeau_capture.interpreter.machine import Frame, Machine


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
    """The truth of a value; where a jump follows that goes by it, as `branch` has it (CPython 3.13
    converts before it jumps).
    """
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
    """Whether every way from an instruction on ends in a `raise` that leaves what the instruction
    stands in.
    """
    seen: set[int] = set()
    pending = [index]
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        name = code.names_at[at]
        if name == "RAISE_VARARGS":
            if code.unwinds[at] is not code.unwinds[index]:
                return False
        elif name in ENDS or name in _SUSPENDS:
            return False
        pending += following(code, at)
    return True


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
