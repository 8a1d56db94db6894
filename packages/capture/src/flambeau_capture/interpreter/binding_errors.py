"""The TypeErrors of calls whose arguments do not fit, in CPython's own words: a stub with the same signature is called natively."""

from __future__ import annotations

import types
from typing import Any, NoReturn

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
