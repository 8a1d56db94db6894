"""When the program may see objects die: by weak references and finalizers.

    obj = Plain(); reference = weakref.ref(obj); gc.collect()      obj is dead here, and held

CPython holds a variable's value until the frame ends, or binds or deletes the variable. A suspended
frame therefore keeps values that nothing reads again. A capture keeps objects alive that the
program has dropped, so it dereferences only those that the program holds.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.values.lazy_values import LazyValue
from flambeau_capture.interpreter.values.objects import is_of_argument
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import ActiveFrame, Recorder

_ATOMS = frozenset({
    type(None), type(Ellipsis), type(NotImplemented), bool, int, float, complex, str, bytes, range,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, types.ModuleType,
    types.BuiltinFunctionType,
})  # fmt: skip
_UNWATCHED = (type, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def may_be_watched(value: Any) -> bool:
    """Whether the program may see when a value dies.

    Tensors do not count: a dead intermediate result would become an output of the graph. Classes do
    not: they hold themselves, and only the collector frees them.
    """
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) in _ATOMS or isinstance(item, _UNWATCHED):
            continue
        if id(item) in seen:
            continue
        if type(item) is dict:
            pending += [*item.keys(), *item.values()]
        elif type(item) in (tuple, list):
            pending += item
        else:
            return True
        seen.add(id(item))
    return False


# ---------------------------------------------------------------- weak references


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
    """GraphBreak if binding or deleting a variable drops an object with weak callbacks.

    The interpreter then does it, between the side effects before and after it.
    """
    machine, held = frame.machine, frame.locals[slot]
    given = type(held) is LazyValue  # an argument that nothing has read yet
    value = held.value if given else held
    if not weakref.getweakrefcount(value) or not may_be_watched(value):
        return
    if not any(map(_has_callback, weakref.getweakrefs(value))):
        return
    if not (given or _is_kept_alive(machine, value)):
        return
    frame.locals[slot] = None
    is_bound = _is_bound(machine, value)
    frame.locals[slot] = held
    if not is_bound:
        detail = f"a {type(value).__name__} is dropped, whose weak references have callbacks"
        raise GraphBreak("side-effect", detail)


def _has_callback(reference: Any) -> bool:
    kind: Any = weakref.ReferenceType
    # What is asked of a proxy is asked of its object.
    return not issubclass(type(reference), kind) or kind.__callback__.__get__(reference) is not None


def _referent(reference: Any) -> Any:
    return reference()


def _is_kept_alive(machine: Recorder, value: Any) -> bool:
    """Whether a table of the capture, or its caller, holds an object whatever the program does."""
    source = machine.objects.source_of(value)
    if source is not None:
        return is_of_argument(source)
    if isinstance(value, type) and value in machine.classes.made:
        return True
    return type(value) is types.FunctionType or id(value) in machine.addresses_read


def _is_bound(machine: Recorder, value: Any) -> bool:
    """Whether a variable or the stack of a frame holds an object."""
    frame = machine.frame
    while frame is not None:
        for item in (*frame.locals, *frame.stack):
            if type(item) is LazyValue:
                item = item.value
            if item is value or (type(item) is types.CellType and _holds(item, value)):
                return True
        frame = frame.parent
    return False


def _holds(cell: types.CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # empty
        return False
