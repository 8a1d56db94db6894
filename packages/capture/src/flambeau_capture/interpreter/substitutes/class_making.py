"""Making classes inside the frame: class statements, `type(...)`, and the functions of the standard
library that make or complete classes.

`__build_class__` runs with the body, metaclass methods and hooks of the program interpreted. The
class is made for real, and belongs to the frame: its attributes are the frame's own values, so no
guard is made on them, and it cannot leave the frame (`exit/rebuild.py`). The `__set_name__` and
`__init_subclass__` that `type.__new__` calls are interpreted.
"""

from __future__ import annotations

import _abc
import builtins
import collections
import contextlib
import dataclasses
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.code.decode import decode
from flambeau_capture.interpreter.frame import UNBOUND, run
from flambeau_capture.interpreter.machine import Frame
from flambeau_capture.interpreter.semantics import attribute_writes, attributes, operators
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.native_calls import Interception
from flambeau_capture.interpreter.substitute_registry import (
    forwarding,
    natively,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    Proxy,
    lookup,
    python_method,
)
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def build_class(
    machine: Machine,
    body: types.FunctionType,
    name: str,
    bases: tuple[Any, ...],
    kwds: dict[str, Any],
) -> Any:
    """`__build_class__(body, name, *bases, **kwds)`."""
    kwds = dict(kwds)
    resolved = _resolve_bases(machine, bases)
    meta = kwds.pop("metaclass", None)
    if meta is None:
        meta = type(resolved[0]) if resolved else type
    if isinstance(meta, type):
        meta = (
            types.prepare_class(name, resolved, {"metaclass": meta})[0]
            if _is_plain(machine, meta)
            else _most_derived(meta, resolved)
        )
    namespace = _prepare(machine, meta, name, resolved, kwds)
    if lookup(machine, type(namespace), "__getitem__") is MISSING:
        maker = meta.__name__ if isinstance(meta, type) else "<metaclass>"
        raise TypeError(
            f"{maker}.__prepare__() must return a mapping, not {type(namespace).__name__}"
        )
    cell = run_body(machine, body, namespace)
    if resolved is not bases and "__orig_bases__" not in namespace:
        namespace["__orig_bases__"] = bases
    made = machine.call(meta, (name, resolved, namespace), kwds)
    if isinstance(cell, types.CellType) and isinstance(made, type):
        _check_class_cell(cell, name, made)
    return made


def _resolve_bases(machine: Machine, bases: tuple[Any, ...]) -> tuple[Any, ...]:
    """The bases with `__mro_entries__` of those that are no classes."""
    found: list[Any] = []
    changed = False
    for base in bases:
        method = None if isinstance(base, type) else getattr(type(base), "__mro_entries__", None)
        if method is None and not isinstance(base, type):
            method = getattr(base, "__mro_entries__", None)  # typing.NamedTuple is a function
            entries = (base,) if method is None else method(bases)
        elif method is None:
            found.append(base)
            continue
        elif is_trusted(type(base).__module__):
            entries = method(base, bases)
        else:
            entries = machine.call(method, (base, bases), {})
        changed = changed or entries != (base,)
        found.extend(entries)
    return tuple(found) if changed else bases


def _is_plain(machine: Machine, meta: type) -> bool:
    return python_method(machine, type(meta), "__prepare__") is None


def _most_derived(meta: type, bases: tuple[Any, ...]) -> type:
    for base in bases:
        kind = type(base)
        if issubclass(meta, kind):
            continue
        if not issubclass(kind, meta):
            raise TypeError(
                "metaclass conflict: the metaclass of a derived class must be a "
                "(non-strict) subclass of the metaclasses of all its bases"
            )
        meta = kind
    return meta


def _prepare(
    machine: Machine, meta: Any, name: str, bases: tuple[Any, ...], kwds: dict[str, Any]
) -> Any:
    """The namespace that the body runs in."""
    prepare = getattr(meta, "__prepare__", None)
    if prepare is None:
        return {}
    function = getattr(prepare, "__func__", prepare)
    if type(function) is types.FunctionType and function.__module__ != "typing":
        return machine.call(prepare, (name, bases), kwds)
    return prepare(name, bases, **kwds)


def run_body(machine: Machine, body: types.FunctionType, namespace: Any) -> Any:
    """Interpret the code of a class or a module, whose names stand in a namespace."""
    code = decode(body.__code__, machine.operations.handlers)
    frame = Frame(machine, code, body, [UNBOUND] * code.n_locals, machine.frame)
    frame.namespace = namespace
    handling = machine.handling
    try:
        run(frame)
    finally:
        machine.handling = handling
    return frame.value


def _check_class_cell(cell: types.CellType, name: str, made: type) -> None:
    """Raise what `__build_class__` raises where `__class__` in the body is not the class made."""
    held: Any = MISSING
    with contextlib.suppress(ValueError):
        held = cell.cell_contents
    if held is MISSING:
        raise RuntimeError(
            f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ "
            f"propagated to type.__new__?"
        )
    if held is not made:
        raise TypeError(f"__class__ set to {held!r} defining {name!r} as {made!r}")


# ---------------------------------------------------------------- making the class


def new_class(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`type.__new__(meta, name, bases, namespace, **kwds)`; the `__set_name__` and
    `__init_subclass__` that it calls are interpreted.
    """
    if not _makes_class(args):
        return type.__new__(*args, **kwargs)  # which raises
    meta, name, bases, namespace = args
    winner = _most_derived(meta, bases)
    if winner is not meta and winner.__new__ is not type.__new__:
        maker = load_attr(machine, winner, "__new__")
        return machine.call(maker, (winner, name, bases, namespace), kwargs)
    if issubclass(meta, type) and any(issubclass(base, torch.Tensor) for base in bases):
        raise GraphBreak("tensor-subclass", f"class {name} derives from Tensor")
    plain = {_ADOPTION: _Adoption(machine), **dict(dict.items(namespace))}
    assert machine.frame is not None
    if "__name__" in machine.frame.globals:
        plain.setdefault("__module__", machine.frame.globals["__name__"])
    interception = machine.state_of(Interception)
    return interception.call(machine, type.__new__, (meta, name, bases, plain), kwargs)


_ADOPTION = "__flambeau_adoption__"


class _Adoption(Proxy):
    """The first member of a class being made: `type.__new__` calls its `__set_name__` before it
    calls any function of the program.
    """

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __set_name__(self, owner: type, name: str) -> None:
        type.__delattr__(owner, name)
        adopt_class(self.machine, owner)


def _makes_class(args: tuple[Any, ...]) -> bool:
    """Whether the arguments of `type.__new__` are of the types that it takes."""
    return (
        len(args) == 4
        and all(map(isinstance, args, (type, str, tuple, dict)))
        and issubclass(args[0], type)
        and all(isinstance(base, type) for base in args[2])
    )


def has_program_hook(cls: type) -> bool:
    """Whether a subclass of `cls` would call an `__init_subclass__` of the program."""
    for owner in cls.__mro__:
        raw = owner.__dict__.get("__init_subclass__")
        if raw is not None:
            return _calls_program(getattr(raw, "__func__", raw))
    return False


def _calls_program(function: Any) -> bool:
    return type(function) is types.FunctionType and not is_trusted(function.__module__)


def adopt_class(machine: Machine, made: type) -> None:
    """Note that a class, and the functions in it, belong to the frame."""
    machine.classes.made[made] = made
    machine.classes.forget()
    for value in list(made.__dict__.values()):
        for function in _functions_of(value):
            machine.functions.made.setdefault(id(function), function)


_FUNCTION_PARTS = ("__func__", "func", "fget", "fset", "fdel", "__wrapped__")


def _functions_of(value: Any) -> list[types.FunctionType]:
    """The functions that a member of a class is, holds or wraps."""
    parts = [value]
    for part in parts:
        own = vars(part) if type(part) is types.FunctionType else None
        parts.extend(
            own[name] if own is not None else getattr(part, name)
            for name in _FUNCTION_PARTS
            if (name in own if own is not None else name in dir(type(part)))
        )
    return [part for part in parts if type(part) is types.FunctionType]


@substitute_for(builtins.__build_class__)
def _build_class(machine: Machine, args: Any, kwargs: Any) -> Any:
    body, name, *bases = args
    return build_class(machine, body, name, tuple(bases), kwargs)


substitute_for(type.__new__)(new_class)
substitute_for(type.__init__)(natively(type.__init__))  # for its errors: `type.__new__` does all
substitute_for(type.__subclasscheck__)(natively(type.__subclasscheck__))
substitute_for(type.__getattribute__)(forwarding(attributes.load_class_attribute))
substitute_for(type.__setattr__)(forwarding(attribute_writes.store_class_attribute))
substitute_for(type.__delattr__)(forwarding(attribute_writes.delete_class_attribute))


@substitute_for(type.__instancecheck__, unpacked=True)
def _instance_check(machine: Machine, cls: Any, obj: Any) -> bool:
    return operators.instance_of_class(machine, obj, cls)


@substitute_for(_abc._abc_init)
def _abc_init(machine: Machine, args: Any, kwargs: Any) -> None:
    _check_made(machine, args[0], "made abstract")
    _abc._abc_init(*args)


@substitute_for(_abc._abc_register)
def _abc_register(machine: Machine, args: Any, kwargs: Any) -> Any:
    _check_made(machine, args[0], "given a virtual subclass")
    return _abc._abc_register(*args)


def _check_made(machine: Machine, cls: type, what: str) -> None:
    if cls not in machine.classes.made:
        raise GraphBreak(
            "class-statement", f"class {cls.__qualname__}, made outside the frame, is {what}"
        )


@substitute_for(dataclasses._process_class)  # type: ignore[attr-defined]
def _process_class(machine: Machine, args: Any, kwargs: Any) -> Any:
    cls = args[0] if args else kwargs["cls"]
    _check_made(machine, cls, "made a dataclass")
    if any(has_program_hook(base) for base in cls.__bases__):
        raise GraphBreak("class-statement", f"dataclass {cls.__qualname__} has __init_subclass__")
    made = dataclasses._process_class(*args, **kwargs)  # type: ignore[attr-defined]
    adopt_class(machine, made)
    return made


def _makes_classes(function: Any) -> None:
    """A function of the standard library that runs natively, and may make a class."""

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        if isinstance(made, type):
            if made.__module__ == __name__:  # named after the function's caller
                assert machine.frame is not None
                made.__module__ = machine.frame.globals.get("__name__", "__main__")
            adopt_class(machine, made)
        return made

    substitute_if_new(function, substitute)


for _function in (
    collections.namedtuple,
    typing._make_nmtuple,  # type: ignore[attr-defined]
    typing.NamedTupleMeta,  # type: ignore[attr-defined]
    typing._TypedDictMeta,  # type: ignore[attr-defined]
    dataclasses.make_dataclass,
):
    _makes_classes(_function)
