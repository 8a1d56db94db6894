"""Raising, handling and with-blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.frame import Handled
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.exception_groups import match_group, to_reraise
from flambeau_capture.interpreter.semantics.operators import special_method
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame


def PUSH_EXC_INFO(frame: Frame, arg: Any) -> None:
    machine, stack = frame.machine, frame.stack
    error = stack.pop()
    stack.append(Handled(machine.handling))
    stack.append(error)
    machine.handling = error


def POP_EXCEPT(frame: Frame, arg: Any) -> None:
    frame.machine.handling = frame.stack.pop().previous


def CHECK_EXC_MATCH(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    wanted = stack.pop()
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
    stack.append(isinstance(stack[-1], wanted))


def CHECK_EG_MATCH(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    wanted, error = stack.pop(), stack.pop()
    _read_group(frame, error)
    rest, match = match_group(error, wanted)
    stack.append(rest)
    stack.append(match)
    if match is not None:
        frame.machine.handling = match


def _read_group(frame: Frame, error: Any) -> None:
    """Read, and so guard, what is in a group that existed before the call."""
    if isinstance(error, BaseExceptionGroup):
        for inner in load_attr(frame.machine, error, "exceptions"):
            _read_group(frame, inner)


def PREP_RERAISE_STAR(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    errors = stack.pop()
    stack.append(to_reraise(stack.pop(), errors, frame.machine.was_raised_by_name))


def RERAISE(frame: Frame, arg: int) -> None:
    raise frame.stack.pop()


def RAISE_VARARGS(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    if arg == 0:
        raise machine.handling or RuntimeError("No active exception to reraise")
    cause = stack.pop() if arg == 2 else None
    if cause is not None:
        cause = _as_exception(frame, cause, "exception causes")
    error = _as_exception(frame, stack.pop(), "exceptions")
    if machine.objects.is_known(error):
        raise GraphBreak(
            "unsupported-mutation",
            f"a {type(error).__name__} that existed before the call is raised, which sets "
            f"its traceback",
        )
    if error is machine.handling and isinstance(error, BaseExceptionGroup):
        machine.groups_raised[id(error)] = error
    if arg == 2:
        error.__cause__ = cause
    handling = machine.handling
    if handling is not None and handling is not error:
        _drop_from_chain(handling, error)
        error.__context__ = handling
    raise error


def _drop_from_chain(handling: BaseException, error: BaseException) -> None:
    """Take `error` out of the chain of contexts that it is about to head, which would be a cycle."""
    link, seen = handling, {id(handling)}
    while (context := link.__context__) is not None and id(context) not in seen:
        if context is error:
            link.__context__ = None
            return
        seen.add(id(context))
        link = context


def _as_exception(frame: Frame, value: Any, role: str) -> BaseException:
    if isinstance(value, type) and issubclass(value, BaseException):
        kind, value = value, frame.machine.call(value, (), {})
        if not isinstance(value, BaseException):
            raise TypeError(
                f"calling {kind!r} should have returned an instance of BaseException, not "
                f"{type(value)!r}"
            )
    if not isinstance(value, BaseException):
        raise TypeError(f"{role} must derive from BaseException")
    return value


def LOAD_ASSERTION_ERROR(frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


def BEFORE_WITH(frame: Frame, arg: Any) -> None:
    machine, stack = frame.machine, frame.stack
    manager = stack.pop()
    enter = special_method(machine, manager, "__enter__")
    leave = special_method(machine, manager, "__exit__")
    if enter is None or leave is None:
        missed = "" if enter is None else " (missed __exit__ method)"
        raise TypeError(
            f"{type(manager).__name__!r} object does not support the context manager "
            f"protocol{missed}"
        )
    stack.append(leave)
    stack.append(machine.call_in_place(enter, (), {}))


def WITH_EXCEPT_START(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    error = stack[-1]
    stack.append(
        frame.machine.call_in_place(stack[-4], (type(error), error, error.__traceback__), {})
    )
