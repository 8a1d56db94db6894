"""Functions that existed before the call: what is guarded of them, and where their parts are.

    model.act = lambda x: x * scale         a function made afresh for each call is the same program as long as its code, its module's
                                            globals and what is read of its cells and defaults are the same

So a function of the program is guarded by its code, and its defaults and cells as they are read.  Its identity is guarded where the
program observes it (identity.py), and of what libraries define once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.classes import is_trusted
from flambeau_capture.interpreter.constant_types import IDENTITY_TYPES, SCALARS
from flambeau_capture.origins import Attribute, Constant, DictEntry, FunctionField, Item, WeakrefTo

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.origins import Origin

_MARKS = frozenset(
    {"_torchdynamo_disable", "_torchdynamo_orig_callable", "_dynamo_marked_constant"}
)
"""Attributes of functions that say what the compiler is to do with them (compiler_functions.py)."""

_FIELDS = {"__defaults__": "defaults", "__kwdefaults__": "kwdefaults", "__closure__": "closure"}
_NAMES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})
_OF_CODE = frozenset({"__code__", "__globals__", "__builtins__"})


def wrap_function(
    machine: Machine, function: types.FunctionType, origin: Origin
) -> types.FunctionType:
    """The function, with a guard on what it is."""
    if is_fixed(machine, function):
        machine.guard("IS", origin, function)
        return function
    known = machine.objects.known.get(id(function))
    if known is None:
        machine.guard("IS", FunctionField(origin, "code"), function.__code__)
        machine.guard("IS", FunctionField(origin, "globals"), function.__globals__)
        machine.objects.register(function, origin)
    elif known[1] is not origin:
        machine.guard("ALIAS", origin, known[1])
    return function


def is_fixed(machine: Machine, function: types.FunctionType) -> bool:
    """Whether a function is one that a library defines once, or that something was said about: guarded by identity."""
    if machine.stands_in_tables(function) or not _MARKS.isdisjoint(function.__dict__):
        return True
    return not function.__closure__ and is_trusted(function.__globals__.get("__name__"))


def function_origin(machine: Machine, function: types.FunctionType) -> Origin:
    """Where a pre-existing function can be fetched from; the program's own are held weakly."""
    found = machine.objects.origin_of(function)
    if found is not None:
        return found
    if is_trusted(function.__globals__.get("__name__")):
        return Constant(function)
    return WeakrefTo.of(function, function.__qualname__)


def guard_followed(machine: Machine, function: types.FunctionType) -> None:
    """A function of the program is about to be followed: its code must stay, and what is constant of its defaults."""
    origin = function_origin(machine, function)
    machine.guard("IS", FunctionField(origin, "code"), function.__code__)
    defaults = function.__defaults__
    if defaults is not None:
        field = FunctionField(origin, "defaults")
        if _are_constants(machine, defaults, field):
            machine.guard("EQUALS", field, defaults)
        else:
            machine.guard("TYPE", field, tuple)
            machine.guard("LENGTH", field, len(defaults))


def default_value(
    machine: Machine, function: types.FunctionType, field: Any, key: Any, value: Any
) -> Any:
    """A default, of `defaults` by position or of `kwdefaults` by name, as the frame may see it."""
    if id(function) in machine.made_functions:
        return value
    kind = type(value)
    if is_trusted(function.__globals__.get("__name__")) and (
        kind in SCALARS or kind in IDENTITY_TYPES or isinstance(value, type)
    ):
        return value
    base = FunctionField(function_origin(machine, function), field)
    if field == "kwdefaults":
        return machine.objects.wrap(value, DictEntry(base, key))
    defaults = function.__defaults__
    assert defaults is not None
    if kind in SCALARS and _are_constants(machine, defaults, base):
        return value
    return machine.objects.wrap(value, Item(base, key))


def _are_constants(machine: Machine, defaults: tuple[Any, ...], field: Origin) -> bool:
    """Whether defaults are guarded by one comparison: none of them is an object, or a number that was seen to change."""
    return all(type(value) in SCALARS for value in defaults) and not (
        machine.dynamic.has_changed_within(field)
    )


def function_part(machine: Machine, function: types.FunctionType, name: str) -> Any:
    """An attribute that all functions have (`__name__`, `__defaults__`)."""
    value = getattr(function, name)
    known = machine.objects.known.get(id(function))
    if known is None or name in _OF_CODE:
        return value
    if name in _FIELDS:
        return machine.objects.wrap(value, FunctionField(known[1], _FIELDS[name]))  # type: ignore[arg-type]
    if name in _NAMES:
        return machine.objects.wrap(value, Attribute(known[1], name))
    machine.guard("IS", known[1], function)
    return value
