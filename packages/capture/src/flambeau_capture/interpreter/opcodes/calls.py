"""Calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_capture.interpreter.decode import VERSION
from flambeau_capture.interpreter.frame import NULL
from flambeau_capture.interpreter.iteration import native_iterable
from flambeau_capture.interpreter.operations import unary

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame

_NULL_AFTER = VERSION >= (3, 13)


def KW_NAMES(frame: Frame, arg: tuple[str, ...]) -> None:
    frame.keyword_names = arg


def CALL(frame: Frame, arg: int) -> None:
    names = frame.keyword_names
    if names:
        frame.keyword_names = ()
    _call(frame, arg, names)


def CALL_KW(frame: Frame, arg: int) -> None:
    _call(frame, arg, frame.stack.pop())


def _call(frame: Frame, count: int, names: tuple[str, ...]) -> None:
    stack = frame.stack
    start = len(stack) - count
    args = stack[start:]
    if _NULL_AFTER:
        function, instance = stack[start - 2], stack[start - 1]
        if instance is not NULL:
            args.insert(0, instance)
    else:
        function, instance = stack[start - 2], stack[start - 1]
        if function is NULL:
            function = instance
        else:
            args.insert(0, instance)
    del stack[start - 2 :]
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        del args[split:]
    else:
        kwargs = {}
    stack.append(frame.machine.call(function, tuple(args), kwargs))


def CALL_FUNCTION_EX(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    kwargs = stack.pop() if arg & 1 else {}
    args = stack.pop()
    above, below = stack.pop(), stack.pop()
    function = below if _NULL_AFTER else above
    if type(kwargs) is not dict:
        kwargs = (
            dict(native_iterable(machine, kwargs)) if not isinstance(kwargs, dict) else dict(kwargs)
        )
    if type(args) is not tuple:
        args = tuple(native_iterable(machine, args))
    stack.append(machine.call(function, args, dict(kwargs)))


def CALL_INTRINSIC_1(frame: Frame, arg: int) -> None:
    handler = _INTRINSICS_1.get(arg)
    if handler is None:
        raise frame.machine.unsupported_opcode(f"CALL_INTRINSIC_1 {arg}")
    handler(frame)


def _stop_iteration_error(frame: Frame) -> None:
    error = frame.stack[-1]
    if isinstance(error, StopIteration):
        raised = RuntimeError("generator raised StopIteration")
        raised.__cause__ = error
        frame.stack[-1] = raised


def _unary_positive(frame: Frame) -> None:
    frame.stack[-1] = unary(frame.machine, "__pos__", frame.stack[-1])


def _list_to_tuple(frame: Frame) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


_INTRINSICS_1 = {3: _stop_iteration_error, 5: _unary_positive, 6: _list_to_tuple}
