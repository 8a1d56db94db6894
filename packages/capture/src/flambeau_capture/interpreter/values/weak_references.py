"""Weak references: a capture keeps objects alive that the program has dropped, so it answers only
for those that the program holds.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.values.objects import is_of_argument
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import ActiveFrame, Recorder


def dereference(machine: Recorder, reference: Any) -> Any:
    """What a weak reference refers to; GraphBreak where only the capture may keep it alive."""
    referent = reference()
    if (
        referent is not None
        and _is_kept_alive(machine, referent)
        and not _is_bound(machine, referent)
    ):
        raise GraphBreak(
            "side-effect",
            f"a weak reference to a {type(referent).__name__} is read, which the frame may "
            f"have dropped",
        )
    source = machine.objects.source_of(reference)
    if source is None:
        return referent
    return machine.objects.wrap(referent, CallOf(_referent, (source,)))


def refuse_finalizing(frame: ActiveFrame, slot: int) -> None:
    """GraphBreak where a variable is the last of the frames' that holds an object of the call, and
    weak references have callbacks to make when it dies: the interpreter deletes the variable,
    between the side effects before and after it.
    """
    machine, value = frame.machine, frame.locals[slot]
    if not _is_kept_alive(machine, value) or all(
        reference.__callback__ is None for reference in weakref.getweakrefs(value)
    ):
        return
    frame.locals[slot] = None
    is_bound = _is_bound(machine, value)
    frame.locals[slot] = value
    if not is_bound:
        raise GraphBreak(
            "side-effect",
            f"a {type(value).__name__} is dropped, whose weak references have callbacks",
        )


def _referent(reference: Any) -> Any:
    return reference()


def _is_kept_alive(machine: Recorder, value: Any) -> bool:
    """Whether a table of the capture, or its caller, holds an object whatever the program does."""
    source = machine.objects.source_of(value)
    if source is not None:
        return is_of_argument(source)
    return type(value) is types.FunctionType or id(value) in machine.addresses_read


def _is_bound(machine: Recorder, value: Any) -> bool:
    """Whether a variable or the stack of a frame holds an object."""
    frame = machine.frame
    while frame is not None:
        for item in (*frame.locals, *frame.stack):
            if item is value or (type(item) is types.CellType and _holds(item, value)):
                return True
        frame = frame.parent
    return False


def _holds(cell: types.CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # empty
        return False
