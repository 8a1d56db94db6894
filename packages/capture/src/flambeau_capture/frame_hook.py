"""The frame hook from Python: frames reached below a graph break are offered to a handler.

    # on_miss(function, arguments) -> Entry | None | bool
    handler = FrameHandler(on_miss)
    # fn runs, its Python frames are offered to the handler
    call_with_handler(handler, fn, *args)

It is off by default and installed only while a handler is in force in some thread. `hook_works()`
tries it once on a known function; where the C core is not built, or the trial fails, calls simply
run: what lies below a break is then eager.

Whether this thread is inside a capture or a backend: what those call must not be captured in turn.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.core import core

if TYPE_CHECKING:
    from collections.abc import Iterator


def flat_code(code: types.CodeType) -> types.CodeType:
    """The code with all parameters positional, `*args` a tuple, `**kwargs` a dict."""
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.replace(
        co_argcount=code.co_argcount + code.co_kwonlyargcount + stars,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )


def flat_function(function: types.FunctionType) -> types.FunctionType:
    """`function` taking its arguments flat, and left alone by the hook."""
    code = flat_code(function.__code__)
    if core is not None:
        core.mark_skip(code)
    return types.FunctionType(
        code, function.__globals__, function.__name__, None, function.__closure__
    )


def identity_entry(function: types.FunctionType) -> Any:
    """An entry without guards that runs a function's own code: for the trial, and for tests."""
    assert core is not None
    flat = flat_function(function)
    count = flat.__code__.co_argcount
    codes = core.operations()
    ops = tuple((codes["ARGUMENT"], at + 1, 0, 0, at, None) for at in range(count))
    program = core.GuardProgram(
        ops=ops, inputs=tuple(range(1, count + 1)), arguments=count, registers=count + 1, symbols=0
    )
    return core.Entry(program=program, target=flat)


@functools.cache
def hook_works() -> bool:
    """Whether the hook works in this interpreter; tried once, on known functions."""
    if core is None or not core.hook_supported:
        return False
    offered = []

    def inner(a: Any, *rest: Any, b: Any = 2, **named: Any) -> Any:
        return (a, rest, b, named)

    def failing(a: Any) -> Any:
        raise KeyError(a)

    def on_miss(function: types.FunctionType, arguments: tuple[Any, ...]) -> Any:
        offered.append((function, arguments))
        return identity_entry(function)

    def outer() -> Any:
        try:
            failing(5)
        except KeyError as error:
            return inner(1, error.args[0], c=4)

    handler = core.FrameHandler(on_miss)
    core.mark_skip(outer.__code__)
    results = [core.call_with_handler(handler, outer) for _ in range(3)]
    expected = [(failing, (5,)), (inner, (1, 2, (5,), {"c": 4}))]
    return (
        results == [(1, (5,), 2, {"c": 4})] * 3
        and offered == expected
        and not core.hook_installed()
    )


def call_with_handler(
    handler: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call `function` with a handler in force; a plain call where the hook does not work."""
    if core is None or not hook_works():
        return function(*args, **kwargs)
    return core.call_with_handler(handler, function, *args, **kwargs)


# ---------------------------------------------------------------- capturing


class _Capturing(threading.local):
    """The package's dynamically scoped value: per thread, and restored on every exit."""

    depth = 0


CAPTURING = _Capturing()


@contextmanager
def capturing() -> Iterator[None]:
    """A block that captures or compiles, hidden from the program's saved-tensors hooks."""
    hooks_off = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    CAPTURING.depth += 1
    try:
        yield
    finally:
        CAPTURING.depth -= 1
        torch._C._autograd._saved_tensors_hooks_set_tracing(hooks_off)


def is_capturing() -> bool:
    """Whether this thread captures a program or compiles its graph."""
    return CAPTURING.depth > 0
