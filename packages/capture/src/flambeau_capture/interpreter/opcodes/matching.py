"""Structural pattern matching."""

from __future__ import annotations

import collections.abc
import sys
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import load_item
from flambeau_capture.interpreter.semantics.operators import contains, instance_of, length
from flambeau_capture.interpreter.values.classes import MISSING, lookup, python_method

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine

_WHOLE_VALUE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def GET_LEN(frame: Frame, arg: Any) -> None:
    frame.stack.append(length(frame.machine, frame.stack[-1]))


def MATCH_MAPPING(frame: Frame, arg: Any) -> None:
    frame.stack.append(isinstance(frame.stack[-1], collections.abc.Mapping))


def MATCH_SEQUENCE(frame: Frame, arg: Any) -> None:
    subject = frame.stack[-1]
    frame.stack.append(
        isinstance(subject, collections.abc.Sequence)
        and not isinstance(subject, (str, bytes, bytearray))
    )


def MATCH_KEYS(frame: Frame, arg: Any) -> None:
    machine, stack = frame.machine, frame.stack
    keys, subject = stack[-1], stack[-2]
    get = python_method(machine, type(subject), "get")
    seen: set[Any] = set()
    values: list[Any] = []
    stack.append(None)
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        if get is not None:
            value = machine.call(get, (subject, key, MISSING), {})
        elif contains(machine, subject, key):
            value = load_item(machine, subject, key)
        else:
            value = MISSING
        if value is MISSING:
            return
        values.append(value)
    stack[-1] = tuple(values)


def MATCH_CLASS(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    names, cls, subject = stack.pop(), stack.pop(), stack.pop()
    stack.append(None)
    if not isinstance(cls, type):
        noun = "class" if sys.version_info >= (3, 12) else "type"
        raise TypeError(f"called match pattern must be a {noun}")
    if not instance_of(machine, subject, cls):
        return
    values: list[Any] = []
    positional = _positional(machine, cls, arg) if arg else ()
    if positional is None:
        values.append(subject)
    seen: set[str] = set()
    try:
        for name in (*(positional or ()), *names):
            if type(name) is not str:
                raise TypeError(
                    f"__match_args__ elements must be strings (got {type(name).__name__})"
                )
            if name in seen:
                raise TypeError(
                    f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"
                )
            seen.add(name)
            values.append(load_attr(machine, subject, name))
    except AttributeError:
        return
    stack[-1] = tuple(values)


def _positional(machine: Machine, cls: type, count: int) -> tuple[Any, ...] | None:
    """The attributes that `count` positional sub-patterns of a class are for; None where the one is
    for the subject itself.
    """
    accepted: tuple[Any, ...] | None = ()
    if lookup(machine, cls, "__match_args__") is not MISSING:
        accepted = load_attr(machine, cls, "__match_args__")
        if type(accepted) is not tuple:
            got = type(accepted).__name__
            raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {got})")
    elif issubclass(cls, _WHOLE_VALUE):
        accepted = None
    most = 1 if accepted is None else len(accepted)
    if count > most:
        plural = "" if most == 1 else "s"
        raise TypeError(
            f"{cls.__name__}() accepts {most} positional sub-pattern{plural} ({count} given)"
        )
    return None if accepted is None else accepted[:count]
