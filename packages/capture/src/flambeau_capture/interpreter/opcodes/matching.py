"""Structural pattern matching."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.attributes import load_attr
from flambeau_capture.interpreter.items import load_item
from flambeau_capture.interpreter.operations import contains, instance_of, length

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame

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
    found = all(contains(machine, subject, key) for key in keys)
    stack.append(tuple(load_item(machine, subject, key) for key in keys) if found else None)


def MATCH_CLASS(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    names, cls, subject = stack.pop(), stack.pop(), stack.pop()
    stack.append(None)
    if not instance_of(machine, subject, cls):
        return
    values: list[Any] = []
    if arg:
        if cls in _WHOLE_VALUE:
            positional: tuple[str, ...] = ()
            values.append(subject)
            accepted = 1
        else:
            positional = getattr(cls, "__match_args__", ())
            accepted = len(positional)
        if arg > accepted:
            raise TypeError(
                f"{cls.__name__}() accepts {accepted} positional sub-patterns ({arg} given)"
            )
        names = (*positional[:arg], *names)
    try:
        values.extend(load_attr(machine, subject, name) for name in names)
    except AttributeError:
        return
    stack[-1] = tuple(values)
