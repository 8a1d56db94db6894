"""Attributes that the frame has written to objects that existed before the call, and the tracked
copies of dicts that must show them.

An attribute is kept in the object's pending writes until exit. Where the frame holds a tracked copy
of the object's `__dict__`, or of a table of a module (`_parameters`), what is written as an
attribute is seen there, too; what is written in the tracked copy itself is the tracked copy's own
change.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.values.classes import lookup
from flambeau_capture.interpreter.values.objects import DELETED
from flambeau_capture.sources import MODULE_TABLES

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.values.objects import TrackedCopy

_instance_dict = object.__getattribute__


def store_own_attribute(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """Set a slot or an entry of the instance dict, in the pending writes of a known object."""
    objects = machine.objects
    if objects.is_known(obj) or (
        type(obj) is types.FunctionType and id(obj) not in machine.made_functions
    ):
        if not objects.is_known(obj):
            objects.register(obj, machine.function_source(obj))
        _check_writable(obj, name)
        if (objects.pending_writes_of(obj) or {}).get(name) is DELETED:
            objects.set_anew.add((id(obj), name))
        objects.add_pending_write(obj, name, value)
        machine.note_attribute_write(obj, name, raw=True)
        update_tracked_dict(machine, obj, name, value)
    else:
        object.__setattr__(obj, name, value)


def update_tracked_dict(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """Keep a tracked copy of `obj.__dict__` in step with the pending writes."""
    if isinstance(lookup(machine, type(obj), name), types.MemberDescriptorType):
        return  # a slot
    own = getattr(obj, "__dict__", None)
    _show(machine.objects.tracked_copy_of.get(id(own)), name, value)


def _show(tracked: TrackedCopy | None, name: str, value: Any) -> None:
    """Make what was set (or, with DELETED, deleted) visible in a tracked copy, without its counting
    as the tracked copy's own change.
    """
    if tracked is None:
        return
    if value is DELETED:
        tracked.copy.pop(name, None)
        tracked.snapshot.pop(name, None)
    else:
        tracked.copy[name] = tracked.snapshot[name] = value


def _check_writable(obj: Any, name: str) -> None:
    """Raise eager's AttributeError for an object that cannot take the attribute."""
    kind = type(obj)
    if not hasattr(obj, "__dict__") and not isinstance(
        getattr(kind, name, None), types.MemberDescriptorType
    ):
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")


def show_pending_in_tables(machine: Machine, obj: Any) -> None:
    """Keep the tracked copies of a module's tables in step with what was set as attributes, which
    is replayed as such.
    """
    own = _instance_dict(obj, "__dict__")
    for name, value in (machine.objects.pending_writes_of(obj) or {}).items():
        table_name = table_for(machine, obj, name, value)
        _show(machine.objects.tracked_copy_of.get(id(own.get(table_name))), name, value)


def table_for(machine: Machine, obj: Any, name: str, value: Any) -> str | None:
    """Which table of a module `nn.Module.__setattr__` puts a value in; None for its own dict, and
    for what is no module.
    """
    if not isinstance(obj, torch.nn.Module):
        return None
    own = _instance_dict(obj, "__dict__")
    kind = machine.tape.real_type(value) if isinstance(value, torch.Tensor) else type(value)
    if issubclass(kind, torch.nn.Parameter):
        return "_parameters"
    if issubclass(kind, torch.nn.Module):
        return "_modules"
    for table_name in MODULE_TABLES:
        table = own.get(table_name)
        if table is not None and (name in table or name in _tracked(machine, table)):
            return table_name
    return None


def _tracked(machine: Machine, table: Any) -> Any:
    """What the frame has made of a table of a module."""
    tracked = machine.objects.tracked_copy_of.get(id(table))
    return () if tracked is None else tracked.copy
