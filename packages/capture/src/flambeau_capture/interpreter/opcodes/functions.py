"""Calls; functions, classes and generators; import statements; names in class bodies.

A name in a class body is read from the body's namespace first, then from cells, globals and
builtins. An import statement imports the module for real (once, as Python does), and reads it
through its globals.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING, Any, NoReturn

from flambeau_capture.bytecode.instructions import NULL_AFTER, VERSION
from flambeau_capture.interpreter.frame import NULL, RETURN, YIELD
from flambeau_capture.interpreter.generator import InterpretedGenerator
from flambeau_capture.interpreter.opcodes.load_store import load_global
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.formatting import Texts
from flambeau_capture.interpreter.semantics.items import (
    EXHAUSTED,
    advance,
    delete_item,
    iterate,
    load_item,
    native_iterable,
    starred,
    store_item,
)
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.interpreter.values.lazy_values import read_texts, realize_arguments
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine


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
    function, instance = stack[start - 2 : start]
    if function is NULL:  # before 3.13
        function = instance
    elif instance is not NULL:
        args.insert(0, instance)
    del stack[start - 2 :]
    split = len(args) - len(names)
    kwargs = dict(zip(names, args[split:], strict=True)) if names else {}
    del args[split:]
    machine, given = frame.machine, tuple(args)
    if machine.objects.lazy_arguments:
        given, kwargs = realize_arguments(machine, function, given, kwargs)
    if machine.state_of(Texts).of_numbers:
        given, kwargs = read_texts(machine, function, given, kwargs)
    stack.append(machine.call_in_place(function, given, kwargs))


def CALL_FUNCTION_EX(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    kwargs = stack.pop() if arg & 1 else {}
    args = stack.pop()
    above, below = stack.pop(), stack.pop()
    function = below if NULL_AFTER else above
    kwargs = dict(kwargs if isinstance(kwargs, dict) else native_iterable(machine, kwargs))
    if not all(isinstance(key, (str, Proxy)) for key in kwargs):
        raise TypeError("keywords must be strings")
    if type(args) is not tuple:
        items = starred(machine, args)
        if items is None:
            raise_unpacking_error(machine, function, "*", "an iterable", args)
        args = tuple(items)
    if machine.state_of(Texts).of_numbers:
        args, kwargs = read_texts(machine, function, args, kwargs)
    stack.append(machine.call_in_place(function, args, kwargs))


def raise_unpacking_error(
    machine: Machine, function: Any, stars: str, wanted: str, value: Any
) -> NoReturn:
    """Raise what `function(*value)` or `function(**value)` raises if `value` cannot be unpacked."""
    name, kind = function_text(machine, function), type(value).__name__
    raise TypeError(f"{name} argument after {stars} must be {wanted}, not {kind}")


def function_text(machine: Machine, function: Any) -> str:
    """How CPython's errors name what is called."""
    try:
        name = load_attr(machine, function, "__qualname__")
    except AttributeError:
        return str(machine.call(str, (function,), {}))
    try:
        module = load_attr(machine, function, "__module__")
    except AttributeError:
        module = None
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


# ---------------------------------------------------------------- functions

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
    frame.machine.functions.made[id(function)] = function
    stack.append(function)


def SET_FUNCTION_ATTRIBUTE(frame: Frame, arg: int) -> None:
    stack = frame.stack
    if id(stack[-1]) not in frame.machine.functions.made:
        raise GraphBreak("unsupported-mutation", "parts of a function made before are set")
    function = stack.pop()
    value = stack.pop()
    if arg == _CLOSURE:
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, value
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__annotations__ = function.__annotations__
        frame.machine.functions.made[id(made)] = made
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


# ---------------------------------------------------------------- class bodies

_ABSENT = object()


def _in_namespace(frame: Frame, namespace: Any, name: str) -> Any:
    """The value of a name in a namespace, which `__prepare__` may have made, or _ABSENT."""
    if namespace is frame.globals:
        return _ABSENT
    if type(namespace) is dict and not frame.machine.objects.is_known(namespace):
        return namespace.get(name, _ABSENT)
    try:
        return load_item(frame.machine, namespace, name)
    except KeyError:
        return _ABSENT


def _load_from(frame: Frame, namespace: Any, name: str) -> Any:
    value = _in_namespace(frame, namespace, name)
    return load_global(frame, name) if value is _ABSENT else value


def LOAD_NAME(frame: Frame, arg: str) -> None:
    namespace = {} if frame.namespace is None else frame.namespace
    frame.stack.append(_load_from(frame, namespace, arg))


def STORE_NAME(frame: Frame, arg: str) -> None:
    store_item(frame.machine, frame.namespace, arg, frame.stack.pop())


def DELETE_NAME(frame: Frame, arg: str) -> None:
    try:
        delete_item(frame.machine, frame.namespace, arg)
    except KeyError:
        raise NameError(f"name {arg!r} is not defined", name=arg) from None


def LOAD_LOCALS(frame: Frame, arg: Any) -> None:
    frame.stack.append(frame.namespace)


def LOAD_FROM_DICT_OR_GLOBALS(frame: Frame, arg: str) -> None:
    frame.stack.append(_load_from(frame, frame.stack.pop(), arg))


def _load_cell_or(frame: Frame, namespace: Any, arg: int) -> None:
    name = frame.code.local_names[arg]
    value = _in_namespace(frame, namespace, name)
    if value is _ABSENT:
        is_free = arg >= frame.code.free_start
        value = frame.machine.objects.load_cell(frame.locals[arg], name, is_free)
    frame.stack.append(value)


def LOAD_CLASSDEREF(frame: Frame, arg: int) -> None:
    _load_cell_or(frame, frame.namespace, arg)


def LOAD_FROM_DICT_OR_DEREF(frame: Frame, arg: int) -> None:
    _load_cell_or(frame, frame.stack.pop(), arg)


def SETUP_ANNOTATIONS(frame: Frame, arg: Any) -> None:
    if _in_namespace(frame, frame.namespace, "__annotations__") is _ABSENT:
        store_item(frame.machine, frame.namespace, "__annotations__", {})


# ---------------------------------------------------------------- modules


def IMPORT_NAME(frame: Frame, arg: str) -> None:
    names, level = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(__import__(arg, frame.globals, None, names, level))


def IMPORT_FROM(frame: Frame, arg: str) -> None:
    module = frame.stack[-1]
    try:
        found = load_attr(frame.machine, module, arg)
    except AttributeError:
        found = sys.modules.get(f"{module.__name__}.{arg}")
        if found is None:
            _raise_import_error(module, arg)
    frame.stack.append(found)


_NAMING = ("__name__", "__spec__", "__file__")
"""What CPython reads of a module to say which it is."""


def _raise_import_error(module: Any, name: str) -> NoReturn:
    """Raise CPython's error for a name that is not in a module, which says where the module is."""
    stand_in = types.ModuleType("")
    vars(stand_in).clear()
    held = getattr(module, "__dict__", {})
    vars(stand_in).update({key: held[key] for key in _NAMING if key in held})
    exec(f"from m import {name}", {"__builtins__": {"__import__": lambda *_: stand_in}})
    raise AssertionError(f"{name} was imported")


# ---------------------------------------------------------------- generators


_COROUTINE = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR


def RETURN_GENERATOR(frame: Frame, arg: Any) -> int:
    if frame.code.flags & _COROUTINE:
        raise GraphBreak("coroutine", f"call of async function {frame.code.name}")
    frame.value = InterpretedGenerator(frame)
    return RETURN


def YIELD_VALUE(frame: Frame, arg: Any) -> int:
    frame.value = frame.stack.pop()
    return YIELD


def GET_YIELD_FROM_ITER(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = iterate(frame.machine, frame.stack[-1])


def SEND(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    sent = stack.pop()
    receiver = stack[-1]
    machine.stop_value = None
    try:
        if sent is None:
            result = advance(machine, receiver)
        else:
            result = machine.call(load_attr(machine, receiver, "send"), (sent,), {})
    except StopIteration as stop:
        result, machine.stop_value = EXHAUSTED, stop.value
    if result is not EXHAUSTED:
        stack.append(result)
        return
    if VERSION < (3, 12):
        stack.pop()
    stack.append(machine.stop_value)
    frame.ip = arg


def END_SEND(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    value = stack.pop()
    stack[-1] = value


def CLEANUP_THROW(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    error = stack.pop()
    if not isinstance(error, StopIteration):
        raise error
    del stack[-2:]
    stack.append(None)
    stack.append(error.value)
