"""Raising, handling and with-blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.operations import special_method
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame


def PUSH_EXC_INFO(frame: Frame, arg: Any) -> None:
    machine, stack = frame.machine, frame.stack
    error = stack.pop()
    stack.append(machine.handling)
    stack.append(error)
    machine.handling = error


def POP_EXCEPT(frame: Frame, arg: Any) -> None:
    frame.machine.handling = frame.stack.pop()


def CHECK_EXC_MATCH(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    wanted = stack.pop()
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
    stack.append(isinstance(stack[-1], wanted))


def RERAISE(frame: Frame, arg: int) -> None:
    raise frame.stack.pop()


def RAISE_VARARGS(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    if arg == 0:
        raise machine.handling or RuntimeError("No active exception to reraise")
    cause = _as_exception(frame, stack.pop()) if arg == 2 else None
    error = _as_exception(frame, stack.pop())
    if error is None:
        raise TypeError("exceptions must derive from BaseException")
    if arg == 2:
        error.__cause__ = cause
    raise error


def _as_exception(frame: Frame, value: Any) -> BaseException | None:
    if isinstance(value, type) and issubclass(value, BaseException):
        value = frame.machine.call(value, (), {})
    if value is not None and not isinstance(value, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    return value


def LOAD_ASSERTION_ERROR(frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


def BEFORE_WITH(frame: Frame, arg: Any) -> None:
    machine, stack = frame.machine, frame.stack
    manager = stack.pop()
    if isinstance(manager, torch.device):
        raise GraphBreak(
            "side-effect",
            "torch.device is used as a context manager",
            hint="pass device= to the factories",
        )
    enter = special_method(machine, manager, "__enter__")
    leave = special_method(machine, manager, "__exit__")
    if enter is None or leave is None:
        raise TypeError(
            f"{type(manager).__name__!r} object does not support the context manager protocol"
        )
    stack.append(leave)
    stack.append(machine.call(enter, (), {}))


def WITH_EXCEPT_START(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    error = stack[-1]
    stack.append(frame.machine.call(stack[-4], (type(error), error, error.__traceback__), {}))
