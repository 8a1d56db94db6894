"""The TypeErrors of calls whose arguments do not fit, in CPython's own words: a stub with the same
signature is called natively.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NoReturn

from flambeau_capture.interpreter.semantics.attributes import load_attr

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_SIGNATURE_FLAGS = 0x04 | 0x08  # CO_VARARGS, CO_VARKEYWORDS


def _stub() -> None:
    """Has the body of every stub."""


def raise_binding_error(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> NoReturn:
    """Raise what calling `function` with arguments that do not fit raises."""
    code, body = function.__code__, _stub.__code__
    flags = body.co_flags | (code.co_flags & _SIGNATURE_FLAGS)
    starred = (code.co_flags & _SIGNATURE_FLAGS).bit_count()
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
    stub_code = body.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=names,
        co_nlocals=len(names),
        co_flags=flags,
    )
    stub = types.FunctionType(stub_code, {}, function.__name__, function.__defaults__)
    stub.__kwdefaults__ = function.__kwdefaults__
    stub.__qualname__ = function.__qualname__
    stub(*args, **kwargs)
    raise AssertionError(f"the arguments of {function.__qualname__} fit")


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
