"""Jumps, loops and returns; structural pattern matching."""

from __future__ import annotations

import collections.abc
import sys
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import PAST_END_FOR
from flambeau_capture.interpreter.branches.speculation import as_condition, branch
from flambeau_capture.interpreter.frame import RETURN
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import EXHAUSTED, advance, iterate, load_item
from flambeau_capture.interpreter.semantics.operators import contains, instance_of, length, truth
from flambeau_capture.interpreter.values.classes import MISSING, lookup, python_method

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine


def RETURN_VALUE(frame: Frame, arg: Any) -> int:
    frame.value = frame.stack.pop()
    return RETURN


def RETURN_CONST(frame: Frame, arg: Any) -> int:
    frame.value = arg
    return RETURN


def JUMP_FORWARD(frame: Frame, arg: int) -> None:
    frame.ip = arg


JUMP_BACKWARD = JUMP_BACKWARD_NO_INTERRUPT = JUMP_FORWARD


def POP_JUMP_IF_TRUE(frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    if value is True or (value is not False and branch(frame, value, arg, frame.ip)):
        frame.ip = arg


def POP_JUMP_IF_FALSE(frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    if value is False or (value is not True and not branch(frame, value, frame.ip, arg)):
        frame.ip = arg


def POP_JUMP_IF_NONE(frame: Frame, arg: int) -> None:
    if frame.stack.pop() is None:
        frame.ip = arg


def POP_JUMP_IF_NOT_NONE(frame: Frame, arg: int) -> None:
    if frame.stack.pop() is not None:
        frame.ip = arg


# 3.11 has one opcode for each direction; the target is resolved while decoding.
POP_JUMP_FORWARD_IF_TRUE = POP_JUMP_BACKWARD_IF_TRUE = POP_JUMP_IF_TRUE
POP_JUMP_FORWARD_IF_FALSE = POP_JUMP_BACKWARD_IF_FALSE = POP_JUMP_IF_FALSE
POP_JUMP_FORWARD_IF_NONE = POP_JUMP_BACKWARD_IF_NONE = POP_JUMP_IF_NONE
POP_JUMP_FORWARD_IF_NOT_NONE = POP_JUMP_BACKWARD_IF_NOT_NONE = POP_JUMP_IF_NOT_NONE


def JUMP_IF_TRUE_OR_POP(frame: Frame, arg: int) -> None:
    if truth(frame.machine, frame.stack[-1]):
        frame.ip = arg
    else:
        frame.stack.pop()


def JUMP_IF_FALSE_OR_POP(frame: Frame, arg: int) -> None:
    if truth(frame.machine, frame.stack[-1]):
        frame.stack.pop()
    else:
        frame.ip = arg


def TO_BOOL(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = as_condition(frame, frame.stack[-1])


def GET_ITER(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = iterate(frame.machine, frame.stack[-1])


def FOR_ITER(frame: Frame, arg: int) -> None:
    item = advance(frame.machine, frame.stack[-1])
    if item is EXHAUSTED:
        frame.stack.pop()
        frame.ip = arg + PAST_END_FOR
    else:
        frame.stack.append(item)


# ---------------------------------------------------------------- pattern matching


_WHOLE_VALUE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def GET_LEN(frame: Frame, arg: Any) -> None:
    frame.stack.append(length(frame.machine, frame.stack[-1]))


def MATCH_MAPPING(frame: Frame, arg: Any) -> None:
    frame.stack.append(isinstance(frame.stack[-1], collections.abc.Mapping))


def MATCH_SEQUENCE(frame: Frame, arg: Any) -> None:
    subject = frame.stack[-1]
    is_text = isinstance(subject, (str, bytes, bytearray))
    frame.stack.append(isinstance(subject, collections.abc.Sequence) and not is_text)


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
                message = f"__match_args__ elements must be strings (got {type(name).__name__})"
                raise TypeError(message)
            if name in seen:
                message = f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"
                raise TypeError(message)
            seen.add(name)
            values.append(load_attr(machine, subject, name))
    except AttributeError:
        return
    stack[-1] = tuple(values)


def _positional(machine: Machine, cls: type, count: int) -> tuple[Any, ...] | None:
    """The attributes of `count` positional sub-patterns; None if the one is the subject itself."""
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
        message = f"{cls.__name__}() accepts {most} positional sub-pattern{plural} ({count} given)"
        raise TypeError(message)
    return None if accepted is None else accepted[:count]
