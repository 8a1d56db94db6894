"""Calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_capture.bytecode import NULL_AFTER
from flambeau_capture.interpreter.binding_errors import raise_unpacking_error
from flambeau_capture.interpreter.frame import NULL
from flambeau_capture.interpreter.iteration import native_iterable, starred
from flambeau_capture.interpreter.unread_arguments import read_texts, settle

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame


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
    if NULL_AFTER:
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
    machine, given = frame.machine, tuple(args)
    if machine.unread_arguments:
        given, kwargs = settle(machine, function, given, kwargs)
    if machine.texts_of_numbers:
        given, kwargs = read_texts(machine, function, given, kwargs)
    stack.append(machine.call_in_place(function, given, kwargs))


def CALL_FUNCTION_EX(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    kwargs = stack.pop() if arg & 1 else {}
    args = stack.pop()
    above, below = stack.pop(), stack.pop()
    function = below if NULL_AFTER else above
    if type(kwargs) is not dict:
        kwargs = (
            dict(native_iterable(machine, kwargs)) if not isinstance(kwargs, dict) else dict(kwargs)
        )
    if type(args) is not tuple:
        items = starred(machine, args)
        if items is None:
            raise_unpacking_error(machine, function, "*", "an iterable", args)
        args = tuple(items)
    kwargs = dict(kwargs)
    if machine.texts_of_numbers:
        args, kwargs = read_texts(machine, function, args, kwargs)
    stack.append(machine.call_in_place(function, args, kwargs))
