"""Numbers and text made of objects: the special methods of the program's classes are interpreted."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter import native
from flambeau_capture.interpreter.classes import MISSING, Native, lookup, python_method
from flambeau_capture.interpreter.formatting import format_value, to_text
from flambeau_capture.interpreter.iteration import native_iterable
from flambeau_capture.interpreter.pending_text import PendingText
from flambeau_capture.interpreter.protocols import accept, as_index
from flambeau_capture.interpreter.substitutes.registry import substitute_for, substitute_if_new
from flambeau_prims.size_floats import FloatExpr, is_unbacked
from flambeau_prims.sizes import as_int
from flambeau_prims.sizes_node import from_symbolic, to_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _by_method(
    machine: Machine, function: Any, value: Any, names: tuple[str, ...]
) -> tuple[Any] | None:
    """What `function` makes of the first of these special methods that the value's class has, in a tuple; None where that is not Python."""
    for name in names:
        method = python_method(machine, type(value), name)
        if method is not None:
            answer = machine.call(method, (value,), {})
            return (accept(function, name, answer, owner=type(value)),)
        if lookup(machine, type(value), name) is not MISSING:
            return None
    return None


def _item(machine: Machine, value: Any) -> Any:
    """A tensor's only element as a number, where such numbers may be symbolic; other values as they are."""
    if isinstance(value, torch.Tensor) and machine.tape.tracer.unbacked:
        return machine.tape.call_method("item", (value,))
    if issubclass(type(value), Native) and getattr(value, "ndim", None) == 0:
        return value.item()  # type: ignore[attr-defined]  # a NumPy scalar, or an array of one
    return value


def _rounded(machine: Machine, function: Any, number: Any) -> Any:
    """An int that is made of an unbacked float, unbacked as that is; None for other numbers."""
    inner = from_symbolic(number) if type(number) is torch.SymFloat else None
    if not isinstance(inner, FloatExpr) or not is_unbacked(inner) or machine.tape.subgraphs:
        return None
    return to_symbolic(machine.tape.unbacked.rounded(function, inner))


@substitute_for(int)
def _int(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        args = (_item(machine, args[0]),)
        kind = type(args[0])
        if kind is torch.SymInt:
            return args[0]
        if kind in (torch.SymFloat, torch.SymBool):
            rounded = _rounded(machine, int, args[0])
            return torch.sym_int(args[0]) if rounded is None else rounded  # type: ignore[no-untyped-call]
        found = _by_method(machine, int, args[0], ("__int__", "__index__", "__trunc__"))
        if found is not None:
            return found[0]
    return int(*args, **kwargs)


@substitute_for(float)
def _float(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1:
        args = (_item(machine, args[0]),)
        if type(args[0]) in (torch.SymInt, torch.SymFloat):
            return torch.sym_float(args[0])  # type: ignore[no-untyped-call]
        found = _by_method(machine, float, args[0], ("__float__", "__index__"))
        if found is not None:
            return found[0]
    return float(*args, **kwargs)


@substitute_for(complex)
def _complex(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        found = _by_method(machine, complex, args[0], ("__complex__", "__float__", "__index__"))
        if found is not None:
            return found[0]
    return complex(*args, **kwargs)


@substitute_for(str)
def _str(machine: Machine, args: Any, kwargs: Any) -> str:
    if len(args) == 1 and not kwargs:
        return to_text(machine, args[0], str)
    return str(*args, **kwargs)


@substitute_for(repr)
def _repr(machine: Machine, args: Any, kwargs: Any) -> str:
    return to_text(machine, args[0], repr)


@substitute_for(ascii)
def _ascii(machine: Machine, args: Any, kwargs: Any) -> str:
    return to_text(machine, args[0], ascii)


@substitute_for(format)
def _format(machine: Machine, args: Any, kwargs: Any) -> str:
    if kwargs or len(args) not in (1, 2):
        return format(*args, **kwargs)  # raises
    spec = args[1] if len(args) > 1 else ""
    if not isinstance(spec, (str, PendingText)):
        return format("", spec)  # raises
    return format_value(machine, args[0], None, spec)


@substitute_for(bytes)
def _bytes(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        found = _by_method(machine, bytes, args[0], ("__bytes__",))
        if found is not None:
            return found[0]
        if lookup(machine, type(args[0]), "__bytes__") is not MISSING:
            return bytes(args[0])
        value: Any = as_index(machine, args[0])
        if not isinstance(value, (int, str)):
            value = native_iterable(machine, value)
        return bytes(value)
    return bytes(*args, **kwargs)


_CHECKED = frozenset({"__index__", "__fspath__"})
_ROUNDING = frozenset({round, math.floor, math.ceil, math.trunc})


def _converting(function: Any, name: str) -> None:
    """A function that asks its first argument's special method, and passes it the others."""

    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        method = python_method(machine, type(args[0]), name)
        if name == "__index__" and isinstance(args[0], int):
            method = None  # an int is its own index
        if method is not None:
            result = machine.call(method, (args[0], *args[1:], *kwargs.values()), {})
            return accept(function, name, result, *args[1:]) if name in _CHECKED else result
        if function in _ROUNDING and len(args) == 1 and not kwargs:
            rounded = _rounded(machine, function, args[0])
            if rounded is not None:
                return rounded
        elif function is round and type(args[0]) is torch.SymInt:
            return round(as_int(from_symbolic(args[0])), *args[1:], **kwargs)  # SymInt drops digits
        args, kwargs = native.prepare_arguments(machine, function, args, kwargs)
        return function(*args, **kwargs)

    substitute_if_new(function, substitute)


for _function, _name in (
    (round, "__round__"),
    (math.floor, "__floor__"),
    (math.ceil, "__ceil__"),
    (math.trunc, "__trunc__"),
    (os.fspath, "__fspath__"),
    (operator.index, "__index__"),
):
    _converting(_function, _name)


@substitute_for(operator.length_hint)
def _length_hint(machine: Machine, args: Any, kwargs: Any) -> Any:
    """The length, else the hint, else the default, which also stands for a TypeError."""
    obj, *rest = args
    length, hint = (python_method(machine, type(obj), name) for name in _LENGTHS)
    if length is None and (hint is None or lookup(machine, type(obj), "__len__") is not MISSING):
        args, kwargs = native.prepare_arguments(machine, operator.length_hint, args, kwargs)
        return operator.length_hint(*args)
    default = operator.length_hint(object(), *rest)
    if length is not None:
        with contextlib.suppress(TypeError):
            return accept(len, "__len__", machine.call(length, (obj,), {}))
    if hint is None:
        return default
    try:
        answer = machine.call(hint, (obj,), {})
    except TypeError:
        return default
    return accept(operator.length_hint, "__length_hint__", answer, *rest)


_LENGTHS = ("__len__", "__length_hint__")
_PREHEADER = 1 << 3 | 1 << 4
"""Flags of types (CPython's Include/object.h) whose objects have their dict or weak references in front of them."""


class _WithDict:
    """An object with a `__dict__` that says this of its size."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __sizeof__(self) -> Any:
        return self.answer


@substitute_for(sys.getsizeof)
def _getsizeof(machine: Machine, args: Any, kwargs: Any) -> Any:
    obj = args[0] if args else kwargs["object"]
    method = python_method(machine, type(obj), "__sizeof__")
    if method is None:
        args, kwargs = native.prepare_arguments(machine, sys.getsizeof, args, kwargs)
        return sys.getsizeof(*args, **kwargs)
    default = (*args[1:], *(kwargs[name] for name in ("default",) if name in kwargs))
    try:
        answer = machine.call(method, (obj,), {})
        if type(obj).__flags__ & _PREHEADER:  # counted beside what `__sizeof__` says
            return sys.getsizeof(_WithDict(answer))
        return accept(sys.getsizeof, "__sizeof__", answer)
    except TypeError:
        if not default:
            raise
        return default[0]
