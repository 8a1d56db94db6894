"""Making functions and classes."""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame

_FIELDS = {1: "__defaults__", 2: "__kwdefaults__", 4: "__annotations__"}
_CLOSURE = 8


def MAKE_FUNCTION(frame: Frame, arg: int | None) -> None:
    stack = frame.stack
    code: types.CodeType = stack.pop()
    flags = arg or 0  # 3.13 sets the parts afterwards, with SET_FUNCTION_ATTRIBUTE
    closure = stack.pop() if flags & _CLOSURE else None
    if closure is None and code.co_freevars:
        # Filled in by SET_FUNCTION_ATTRIBUTE; CPython allows a closure of the right size only.
        closure = tuple(types.CellType() for _ in code.co_freevars)
    function = types.FunctionType(code, frame.globals, None, None, closure)
    for flag in (4, 2, 1):
        if flags & flag:
            _set_part(function, flag, stack.pop())
    frame.machine.made_functions[id(function)] = function
    stack.append(function)


def SET_FUNCTION_ATTRIBUTE(frame: Frame, arg: int) -> None:
    stack = frame.stack
    if id(stack[-1]) not in frame.machine.made_functions:
        raise GraphBreak("unsupported-mutation", "parts of a function made before are set")
    function = stack.pop()
    value = stack.pop()
    if arg == _CLOSURE:
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, value
        )
        made.__kwdefaults__, made.__annotations__ = (
            function.__kwdefaults__,
            function.__annotations__,
        )
        frame.machine.made_functions[id(made)] = made
        function = made
    else:
        _set_part(function, arg, value)
    stack.append(function)


def _set_part(function: types.FunctionType, flag: int, value: Any) -> None:
    if flag == 4 and isinstance(value, tuple):
        value = dict(zip(value[::2], value[1::2], strict=True))
    setattr(function, _FIELDS[flag], value)


def LOAD_BUILD_CLASS(frame: Frame, arg: Any) -> None:
    frame.stack.append(builtins.__build_class__)
