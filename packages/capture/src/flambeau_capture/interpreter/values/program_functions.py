"""Functions that existed before the call: what is guarded of them, and where their parts are.

    model.act = lambda x: x * scale     a function made for each call is the same program while its
                                        code, its module's globals and what is read of its cells
                                        and defaults are the same

A function of the program is guarded by its code, and its defaults and cells as they are read. Its
identity is guarded if a library defines it once, or if the program observes it: by `is`, by the
default `==`, by hashing a function. Two objects that the program has distinguished must be two in
later calls; a function that it has hashed must be that function.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitute_registry import is_replaced
from flambeau_capture.interpreter.values.classes import (
    IDENTITY_TYPES,
    SCALARS,
    TORCH_CONSTANTS,
)
from flambeau_capture.sources import (
    Attribute,
    CallOf,
    Closure,
    Constant,
    DictEntry,
    FunctionField,
    Item,
    WeakrefTo,
)
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.protocols import Recorder
    from flambeau_capture.sources import Source

_MARKS = {"_torchdynamo_disable", "_torchdynamo_orig_callable", "_dynamo_marked_constant"}
"""Attributes of functions that say what the compiler is to do with them (compiler_functions.py)."""

_FIELDS = {"__defaults__": "defaults", "__kwdefaults__": "kwdefaults", "__closure__": "closure"}
_NAMES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})
_OF_CODE = frozenset({"__code__", "__globals__", "__builtins__"})


def wrap_function(
    machine: Recorder, function: types.FunctionType, source: Source
) -> types.FunctionType:
    """The function, with a guard on what it is."""
    if is_fixed(machine, function):
        machine.guard("IS", source, function)
        return function
    known = machine.objects.known.get(id(function))
    if known is None:
        machine.guard("IS", FunctionField(source, "code"), function.__code__)
        machine.guard("IS", FunctionField(source, "globals"), function.__globals__)
        machine.objects.register(function, source)
    elif known[1] is not source:
        machine.guard("ALIAS", source, known[1])
    return function


def is_fixed(machine: Recorder, function: types.FunctionType) -> bool:
    """Whether a function is guarded by identity: a library's, a substituted or a marked one."""
    if id(function) in machine.user_overrides:
        machine.of_the_process = f"how the program has {function.__qualname__} compiled"
        return True
    if is_replaced(function):
        return True
    if not _MARKS.isdisjoint(function.__dict__):
        return True
    return not function.__closure__ and is_trusted(function.__globals__.get("__name__"))


def function_source(machine: Recorder, function: types.FunctionType) -> Source:
    """Where a pre-existing function can be fetched from; the program's own are held weakly."""
    found = machine.objects.source_of(function)
    if found is not None:
        return found
    if is_trusted(function.__globals__.get("__name__")):
        return Constant(function)
    return WeakrefTo.of(function, function.__qualname__)


def guard_followed(machine: Recorder, function: types.FunctionType) -> None:
    """Guard what a followed function of the program depends on: its code and constant defaults."""
    source = function_source(machine, function)
    machine.guard("IS", FunctionField(source, "code"), function.__code__)
    defaults = function.__defaults__
    if defaults is not None:
        field = FunctionField(source, "defaults")
        if _are_constants(machine, defaults, field):
            machine.guard("EQUALS", field, defaults)
        else:
            machine.guard("TYPE", field, tuple)
            machine.guard("LENGTH", field, len(defaults))


def default_value(
    machine: Recorder, function: types.FunctionType, field: Any, key: Any, value: Any
) -> Any:
    """A default, of `defaults` by position or of `kwdefaults` by name, as the frame may see it."""
    if id(function) in machine.functions.made:
        return value
    kind = type(value)
    if is_trusted(function.__globals__.get("__name__")) and (
        kind in SCALARS or kind in IDENTITY_TYPES or isinstance(value, type)
    ):
        return value
    base = FunctionField(function_source(machine, function), field)
    if field == "kwdefaults":
        return machine.objects.wrap(value, DictEntry(base, key))
    defaults = function.__defaults__
    assert defaults is not None
    if kind in SCALARS and _are_constants(machine, defaults, base):
        return value
    return machine.objects.wrap(value, Item(base, key))


def _are_constants(machine: Recorder, defaults: tuple[Any, ...], field: Source) -> bool:
    """Whether one comparison guards defaults: no object, and no number that has changed."""
    is_scalar = all(type(value) in SCALARS for value in defaults)
    return is_scalar and not machine.dynamic.has_changed_within(field)


def function_part(machine: Recorder, function: types.FunctionType, name: str) -> Any:
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


# ---------------------------------------------------------------- identity

_OF_THE_PROGRAM = (IDENTITY_TYPES - {types.FunctionType}) | SCALARS | TORCH_CONSTANTS | {type, str}
"""Types of which records hold the very objects."""


def identical(machine: Recorder, left: Any, right: Any) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if type(left) is type(right):
        tell_apart(machine, left, right)
    return False


def tell_apart(machine: Recorder, left: Any, right: Any) -> None:
    """Two objects of one type were found to be two."""
    one, other = (_source_of(machine, x) or _library_source(machine, x) for x in (left, right))
    if one is not None and other is not None:
        if one is not other:
            machine.guard("NOT_ALIAS", one, other)
    elif type(left) is types.FunctionType:
        observe(machine, left)
        observe(machine, right)


def _library_source(machine: Recorder, value: Any) -> Source | None:
    """Where a function is that a library defines once: itself."""
    if type(value) is not types.FunctionType or id(value) in machine.functions.made:
        return None
    fixed = not value.__closure__ and machine.functions.is_library(value.__globals__)
    return Constant(value) if fixed else None


def observe(machine: Recorder, value: Any) -> None:
    """The identity of a value was read: guarded if it is a function's; others do not matter."""
    if type(value) is types.FunctionType:
        known = machine.objects.known.get(id(value))
        if known is not None:
            machine.guard("IS", known[1], value)
    elif type(value) is types.MethodType:
        observe(machine, value.__func__)
    elif type(value) is tuple:
        for item in value:
            observe(machine, item)


def address_read(machine: Recorder, value: Any) -> None:
    """The program has read `id(value)`, or a hash that is made of it.

    What the frame has made must not be rebuilt as another object; another object of the program has
    another address.
    """
    frame = machine.frame
    if (
        frame is None
        or machine.functions.is_library(frame.globals)
        or type(value) in _OF_THE_PROGRAM
    ):
        return
    source = _source_of(machine, value)
    if source is None:
        machine.addresses_read[id(value)] = value
    else:
        machine.guard("EQUALS", CallOf(id, (source,)), id(real_object(machine, value)))


def real_object(machine: Recorder, value: Any) -> Any:
    """The object of the program behind a fake tensor or a tracked copy; others are themselves."""
    if isinstance(value, torch.Tensor):
        found = machine.tape.input_of(value)
        return value if found is None else found[0]
    tracked = machine.objects.tracked_copies.get(id(value))
    return value if tracked is None else tracked.real


def _source_of(machine: Recorder, value: Any) -> Source | None:
    if isinstance(value, torch.Tensor):
        found = machine.tape.input_of(value)
        return None if found is None else found[1].source
    return machine.objects.source_of(value)


# ---------------------------------------------------------------- the functions of a capture


class ProgramFunctions:
    """The functions that one capture has met, and those that the frame has made."""

    def __init__(self, machine: Recorder) -> None:
        self._machine = machine
        self.made: dict[int, Any] = {}
        self._closures: set[int] = set()
        self._followed: dict[int, types.FunctionType] = {}
        self._library_globals: dict[int, bool] = {}

    def is_library(self, module_globals: dict[str, Any]) -> bool:
        """Whether code with these globals is torch's or the standard library's."""
        found = self._library_globals.get(id(module_globals))
        if found is None:
            found = is_trusted(module_globals.get("__name__"))
            self._library_globals[id(module_globals)] = found
        return found

    def register_closure(self, function: types.FunctionType) -> None:
        """Note where the cells of a pre-existing function are."""
        if id(function) in self.made or id(function) in self._closures:
            return
        self._closures.add(id(function))
        cells = function.__closure__ or ()
        if function is self._machine.scope.function:
            for index, name in enumerate(function.__code__.co_freevars):
                self._machine.objects.register(cells[index], Closure(name, index))
            return
        base = FunctionField(function_source(self._machine, function), "closure")
        for index, cell in enumerate(cells):
            self._machine.objects.register(cell, Item(base, index))

    def follow(self, function: types.FunctionType) -> None:
        """A function of the program is about to be followed: its code and defaults must stay."""
        key = id(function)
        if key in self._followed or key in self.made:
            return
        self._followed[key] = function
        if self.is_library(function.__globals__):
            return
        guard_followed(self._machine, function)
