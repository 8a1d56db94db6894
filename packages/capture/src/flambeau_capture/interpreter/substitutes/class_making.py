"""Making classes inside the frame: class statements, `type(...)`, and the functions of the standard
library that make or complete classes.
"""

from __future__ import annotations

import _abc
import builtins
import collections
import dataclasses
import enum
import typing
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.semantics import attribute_writes, attributes, operators
from flambeau_capture.interpreter.semantics.class_statements import (
    adopt_class,
    build_class,
    has_program_hook,
    new_class,
)
from flambeau_capture.interpreter.substitute_registry import substitute_for, substitute_if_new
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(builtins.__build_class__)
def _build_class(machine: Machine, args: Any, kwargs: Any) -> Any:
    body, name, *bases = args
    return build_class(machine, body, name, tuple(bases), kwargs)


@substitute_for(type.__new__)
def _new_class(machine: Machine, args: Any, kwargs: Any) -> Any:
    return new_class(machine, args, kwargs)


@substitute_for(type.__init__)
def _init_class(machine: Machine, args: Any, kwargs: Any) -> None:
    """Nothing: `type.__new__` has done all."""


@substitute_for(type.__instancecheck__)
def _instance_check(machine: Machine, args: Any, kwargs: Any) -> bool:
    cls, obj = args
    return operators.instance_of_class(machine, obj, cls)


@substitute_for(type.__subclasscheck__)
def _subclass_check(machine: Machine, args: Any, kwargs: Any) -> bool:
    return type.__subclasscheck__(*args)


@substitute_for(type.__getattribute__)
def _class_getattribute(machine: Machine, args: Any, kwargs: Any) -> Any:
    return attributes.load_class_attribute(machine, *args)


@substitute_for(type.__setattr__)
def _class_setattr(machine: Machine, args: Any, kwargs: Any) -> None:
    attribute_writes.store_class_attribute(machine, *args)


@substitute_for(_abc._abc_init)
def _abc_init(machine: Machine, args: Any, kwargs: Any) -> None:
    _check_made(machine, args[0], "made abstract")
    _abc._abc_init(*args)


@substitute_for(_abc._abc_register)
def _abc_register(machine: Machine, args: Any, kwargs: Any) -> Any:
    _check_made(machine, args[0], "given a virtual subclass")
    return _abc._abc_register(*args)


def _check_made(machine: Machine, cls: type, what: str) -> None:
    if cls not in machine.made_classes:
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


def _is_made(machine: Machine, function: Any) -> bool:
    return id(getattr(function, "__func__", function)) in machine.made_functions


_MADE_BY_ENUM = ("__new__", "__init__", "_generate_next_value_", "_missing_")


@substitute_for(enum.EnumMeta)
def _new_enum(machine: Machine, args: Any, kwargs: Any) -> Any:
    """An enumeration: made natively, unless that would run functions of the class body."""
    name, bases, namespace = args
    if any(has_program_hook(base) for base in bases) or any(
        _is_made(machine, namespace.get(key)) for key in _MADE_BY_ENUM
    ):
        raise GraphBreak("class-statement", f"enumeration {name} makes its members itself")
    made = enum.EnumMeta(*args, **kwargs)
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
