"""What classes define: raw lookup along the MRO, and special methods written in Python.

Type attributes are looked up once per capture (`ClassTable`), with a guard on those of the
program's own classes. Objects of some types are guarded by value or by identity, and need no guards
on their attributes.

`len(x)` calls `__len__`, which is interpreted. `len` of an object that gives the same answer then
makes CPython's checks, in CPython's order and with its messages.
"""

from __future__ import annotations

import functools
import operator
import re
import types
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from flambeau_capture.python_core import Compiled
from flambeau_capture.sources import ABSENT, HEAP_TYPE, Attribute, TypeAttribute
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flambeau_capture.interpreter.protocols import RecipeMaker, Recorder
    from flambeau_capture.record import Recipe
    from flambeau_capture.sources import Source


Entry = TypeVar("Entry")
MISSING = ABSENT
_mro_of = type.__dict__["__mro__"].__get__
_dict_of = type.__dict__["__dict__"].__get__

SYMBOLIC_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""The type that the program sees.  Their operators are Python functions of torch, run natively."""


def of_bases(table: Mapping[type, Entry], kind: type, default: Entry) -> Entry:
    """The table's entry for the first class in the MRO of `kind` that has one."""
    for base in _mro_of(kind):
        if base in table:
            return table[base]
    return default


class ClassTable:
    """What one capture has looked up in classes, and the classes that the frame has made."""

    __slots__ = ("attributes", "made", "methods")

    def __init__(self) -> None:
        self.attributes: dict[Any, Any] = {}
        self.methods: dict[Any, Any] = {}
        self.made: dict[type, type] = {}

    def forget(self) -> None:
        """Look everything up again: a class has changed."""
        self.attributes.clear()
        self.methods.clear()


def lookup(machine: Recorder, cls: type, name: str) -> Any:
    """The raw attribute of a class, or MISSING; guarded where the class is the program's own."""
    key = (cls, name)
    cache = machine.classes.attributes
    found = cache.get(key, cache)
    if found is cache:
        found = MISSING
        owner = cls
        for owner in _mro_of(cls):
            written = machine.objects.classes_written.get((owner, name))
            if written is not None:
                cache[key] = written[0]
                return written[0]
            found = _dict_of(owner).get(name, MISSING)
            if found is not MISSING:
                break
        cache[key] = found
        definer = cls if found is MISSING else owner
        own = name == "forward" or not is_trusted(definer.__module__)
        if own and owner not in machine.classes.made and _guardable(found):
            _guard_definition(machine, owner, class_attribute(machine, cls, name), found)
        elif not own and cls.__flags__ & HEAP_TYPE and cls not in machine.classes.made:
            machine.rely_on(cls, name)
    return found


def class_attribute(machine: Recorder, cls: type, name: str) -> Source:
    """Where an attribute of a class is found: in a base, of a class that the frame has made."""
    made = machine.classes.made
    if cls in made:
        bases = (base for base in _mro_of(cls) if base not in made and name in _dict_of(base))
        cls = next(bases, cls)
    return TypeAttribute.of(cls, name)


_PARTS = {
    property: ("fget", "fset", "fdel"), staticmethod: ("__func__",), classmethod: ("__func__",),
}  # fmt: skip


def _guard_definition(machine: Recorder, owner: Any, source: Source, found: Any) -> None:
    """Require what a class defines to stay.

    The program may drop a class that one of its functions makes. What allows no weak references is
    guarded by its parts there: a guard that holds it would keep the class alive.
    """
    parts = _PARTS.get(type(found), ()) if "<locals>" in owner.__qualname__ else ()
    if not parts:
        machine.guard("IS", source, found)
        return
    machine.guard("TYPE", source, type(found))
    for part in parts:
        machine.guard("IS", Attribute(source, part), getattr(found, part))


def is_written(machine: Recorder, cls: type, name: str) -> bool:
    """Whether the frame has set the attribute that `lookup` finds, or made its class."""
    written, made = machine.objects.classes_written, machine.classes.made
    if not written and not made:
        return False
    for owner in _mro_of(cls):
        if (owner, name) in written:
            return True
        if name in _dict_of(owner):
            return owner in made
    return False


def _guardable(found: Any) -> bool:
    """Whether a class attribute is a function or descriptor; plain values are guarded when read."""
    if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        return False
    return isinstance(found, (types.FunctionType, property, classmethod, staticmethod)) or (
        found is not MISSING and hasattr(type(found), "__get__")
    )


def _slot_members(cls: type) -> dict[str, types.MemberDescriptorType]:
    """The descriptors of a class's slots, by their names in the class."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if base.__flags__ & HEAP_TYPE and "__slots__" in base.__dict__
        for name, member in base.__dict__.items()
        if type(member) is types.MemberDescriptorType
    }


def has_slots(cls: type) -> bool:
    """Whether the objects of a class have slots of a class in Python."""
    return bool(_slot_members(cls))


def slot_values(obj: Any) -> dict[str, Any]:
    """What the slots of an object hold, those that are set; no code of the program runs."""
    found = {}
    for name, member in _slot_members(type(obj)).items():
        try:
            found[name] = member.__get__(obj)
        except AttributeError:  # not set
            continue
    return found


def python_method(machine: Recorder, cls: type, name: str) -> types.FunctionType | None:
    """A special method of `cls` if it is written in Python, else None."""
    key = (cls, name, None)
    cache = machine.classes.methods
    found = cache.get(key, cache)
    if found is cache:
        found = None
        if cls not in SYMBOLIC_NUMBERS and not issubclass(cls, (torch.Tensor, Proxy)):
            raw = lookup(machine, cls, name)
            if type(raw) is types.FunctionType:
                found = raw
            elif isinstance(raw, (staticmethod, classmethod)):
                found = raw.__func__
            elif type(raw) is Compiled:
                found = raw.__wrapped__
        cache[key] = found
    return found


class Proxy:
    """Base of the interpreter's own objects on a program's stack: their methods run natively."""

    __slots__ = ()

    def seen_type(self) -> type | None:
        """The type that the program sees, if the object stands in for one of another library."""
        return None

    @staticmethod
    def instance_of(classes: Any) -> bool:
        """What the program's `isinstance` says of an object that has no `seen_type`."""
        return issubclass(object, classes)

    def seen_attribute(self, name: str) -> Any:
        """What the program reads as an attribute."""
        return getattr(self, name)

    def store_seen(self, name: str, value: Any) -> None:
        """What the program sets as an attribute."""
        setattr(self, name, value)

    def delete_seen(self, name: str) -> None:
        """What the program deletes as an attribute."""
        delattr(self, name)

    def recipe(self, rebuild: RecipeMaker) -> Recipe | None:
        """How what it stands for is made when it leaves the frame; None for what cannot."""
        return None


# ---------------------------------------------------------------- constant types

NoneType = type(None)

SCALARS: frozenset[type] = frozenset(
    {int, float, complex, str, bytes, bool, NoneType, type(...), type(NotImplemented)}
)
"""Immutable types whose values are guarded by value."""

TORCH_CONSTANTS: frozenset[type] = frozenset(
    {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo}
)

LRU_CACHE: type = type(functools.lru_cache(lambda: 0))
IDENTITY_TYPES: frozenset[type] = frozenset({
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.MethodWrapperType, types.CodeType, property, classmethod,
    staticmethod, LRU_CACHE, re.Pattern, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    types.GenericAlias, type(types.SimpleNamespace.__init__),
})  # fmt: skip
"""Types whose objects are guarded by identity and used as they are."""


# ---------------------------------------------------------------- answers of special methods


def _answering(name: str, owner: str = "Answer") -> type:
    """A class whose special method of this name returns what the instance was made with."""

    def method(self: Any, *args: Any) -> Any:
        return self.answer

    def __init__(self: Any, answer: Any) -> None:
        self.answer = answer

    return type(owner, (), {"__init__": __init__, "__slots__": ("answer",), name: method})


_ANSWERS = {
    name: _answering(name)
    for name in (
        "__len__",
        "__bool__",
        "__index__",
        "__int__",
        "__trunc__",
        "__float__",
        "__complex__",
        "__bytes__",
        "__hash__",
        "__iter__",
        "__repr__",
        "__str__",
        "__format__",
        "__length_hint__",
        "__fspath__",
        "__sizeof__",
        "__dir__",
    )
}


def accept(
    function: Callable[..., Any], name: str, answer: Any, *rest: Any, owner: type | None = None
) -> Any:
    """What `function(x, *rest)` makes of what `x`'s special method answered; raises what it raises,
    which may name `x`'s type, the `owner`.

    Symbolic numbers and the interpreter's own objects are taken as they are.
    """
    kind = type(answer)
    if kind in SYMBOLIC_NUMBERS or issubclass(kind, Proxy):
        return answer
    try:
        return function(_ANSWERS[name](answer), *rest)
    except TypeError:
        if owner is None:
            raise
    return function(_answering(name, owner.__name__)(answer), *rest)


def as_index(machine: Recorder, value: Any) -> Any:
    """`value`, or the int of its `__index__` in Python; of a slice, the slice of its ints."""
    kind = type(value)
    if kind is int:
        return value
    if kind is slice:
        bounds = (value.start, value.stop, value.step)
        found = [as_index(machine, bound) for bound in bounds]
        same = all(a is b for a, b in zip(bounds, found, strict=True))
        return value if same else slice(*found)
    method = python_method(machine, kind, "__index__")
    if method is None or issubclass(kind, int):
        return value
    return accept(operator.index, "__index__", machine.call(method, (value,), {}))
