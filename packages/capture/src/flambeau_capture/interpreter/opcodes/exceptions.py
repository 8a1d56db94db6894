"""Raising, handling and with-blocks; what `except*` does with exception groups.

`except*` follows PEP 654 and CPython's exception_group_match and _PyExc_PrepReraiseStar. But
interpreted frames give no tracebacks, by which CPython knows whether a part was raised again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.exit.rebuild_objects import RaisedGroups
from flambeau_capture.interpreter.frame import Handled
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.operators import special_method
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

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
    _check_caught(wanted)
    stack.append(isinstance(stack[-1], wanted))


def _check_caught(wanted: Any) -> tuple[type[BaseException], ...]:
    """The classes that a clause catches; TypeError if one is no exception class."""
    classes = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return classes


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
    stack.append(to_reraise(stack.pop(), errors, frame.machine.state_of(RaisedGroups).named))


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
        machine.state_of(RaisedGroups)[id(error)] = error
    if arg == 2:
        error.__cause__ = cause
    handling = machine.handling
    if handling is not None and handling is not error:
        _drop_from_chain(handling, error)
        error.__context__ = handling
    raise error


def _drop_from_chain(handling: BaseException, error: BaseException) -> None:
    """Take `error` out of the chain of contexts that it is about to head: no cycle arises."""
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
    details = (type(error), error, error.__traceback__)
    stack.append(frame.machine.call_in_place(stack[-4], details, {}))


# ---------------------------------------------------------------- except*


def match_group(error: Any, wanted: Any) -> tuple[Any, Any]:
    """(rest, match): the parts of an exception that a clause `except* wanted` leaves and takes."""
    if any(issubclass(cls, BaseExceptionGroup) for cls in _check_caught(wanted)):
        raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
    if error is None:
        return None, None
    if isinstance(error, wanted):
        if isinstance(error, BaseExceptionGroup):
            return None, error
        return None, BaseExceptionGroup("", (error,))
    if isinstance(error, BaseExceptionGroup):
        taken, rest = error.split(wanted)
        return rest, taken
    return error, None


def to_reraise(
    original: BaseException,
    errors: list[BaseException | None],
    raised_by_name: Callable[[BaseException], bool],
) -> BaseException | None:
    """What leaves a try statement with `except*`: what its clauses raised, and the unhandled part
    of the original as it was.

    `raised_by_name` says of a part of the original whether a clause has raised it, other than by a
    bare `raise`.
    """
    if not isinstance(original, BaseExceptionGroup):
        return errors[0] if errors else None
    raised: list[BaseException] = []
    kept: list[Any] = []
    for error in errors:
        if error is not None:
            same = error is original or not raised_by_name(error)
            (kept if same and _same_metadata(error, original) else raised).append(error)
    projection = _project(original, kept)
    if not raised:
        return projection
    if projection is not None:
        raised.append(projection)
    return raised[0] if len(raised) == 1 else BaseExceptionGroup("", raised)


def _same_metadata(error: BaseException, original: BaseException) -> bool:
    """Whether an exception is a part that was split off the original, not a new one."""
    return isinstance(error, BaseExceptionGroup) and all(
        getattr(error, name, None) is getattr(original, name, None)
        for name in ("__notes__", "__cause__", "__context__")
    )


def _project(
    original: BaseExceptionGroup[Any], kept: list[BaseExceptionGroup[Any]]
) -> BaseException | None:
    """The part of the original whose leaves are in any of the kept groups, nested as they were."""
    if not kept:
        return None
    leaves: set[int] = set()
    pending: list[BaseException] = list(kept)
    for error in pending:
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.add(id(error))
    return original.subgroup(
        lambda error: not isinstance(error, BaseExceptionGroup) and id(error) in leaves
    )
