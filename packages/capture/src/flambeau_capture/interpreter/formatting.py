"""Values as text: `str`, `repr`, `format`, f-strings, `%` and `str.format`, with the methods of the program's classes interpreted.

Native formatting is given the values themselves where they are plain, and stand-ins for objects whose text is made by Python.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.attributes import load_attr
from flambeau_capture.interpreter.classes import MISSING, Native, lookup, python_method
from flambeau_capture.interpreter.items import load_item
from flambeau_capture.interpreter.symbolic import concrete
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine

_PLAIN = frozenset(
    {
        str,
        int,
        float,
        bool,
        complex,
        bytes,
        type(None),
        torch.dtype,
        torch.device,
        torch.Size,
        range,
        slice,
    }
)
_TEXT_METHODS = ("__str__", "__repr__", "__format__")


class InterpretedText(Native):
    """A value as native formatting sees it: its text, attributes and items are interpreted."""

    __slots__ = ("machine", "value")

    def __init__(self, machine: Machine, value: Any) -> None:
        self.machine, self.value = machine, value

    def __str__(self) -> str:
        return to_text(self.machine, self.value, str)

    def __repr__(self) -> str:
        return to_text(self.machine, self.value, repr)

    def __format__(self, spec: str) -> str:
        return format_value(self.machine, self.value, None, spec)

    def __getattr__(self, name: str) -> Any:
        return formattable(self.machine, load_attr(self.machine, self.value, name))

    def __getitem__(self, key: Any) -> Any:
        return formattable(self.machine, load_item(self.machine, self.value, key))

    def __int__(self) -> int:
        return int(self.machine.call(int, (self.value,), {}))

    def __float__(self) -> float:
        return float(self.machine.call(float, (self.value,), {}))


def formattable(machine: Machine, value: Any) -> Any:
    """`value`, or what stands for it in native formatting; a graph break where that would show a tensor's contents."""
    value = concrete(value)
    kind = type(value)
    if kind in _PLAIN or issubclass(kind, Native):
        return value
    if isinstance(value, torch.Tensor):
        raise GraphBreak("data-dependent", "a tensor is formatted as text")
    if any(python_method(machine, kind, name) is not None for name in _TEXT_METHODS):
        return InterpretedText(machine, value)
    if isinstance(value, dict):
        if machine.objects.is_known(value):
            value = machine.whole_dict(value)
        return _dict(machine, value)
    if kind in (list, tuple, set, frozenset, collections.deque):
        items = [formattable(machine, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return collections.deque(items, value.maxlen) if kind is collections.deque else kind(items)
    if isinstance(value, tuple):
        return tuple(formattable(machine, item) for item in value)
    if isinstance(value, BaseException):
        for item in exception_arguments(machine, value):
            if formattable(machine, item) is not item:
                return InterpretedText(machine, value)
    return value


def _dict(machine: Machine, value: dict[Any, Any]) -> Any:
    keys = [formattable(machine, key) for key in value]
    items = [formattable(machine, item) for item in value.values()]
    if all(new is old for new, old in zip(keys, value, strict=True)) and all(
        new is old for new, old in zip(items, value.values(), strict=True)
    ):
        return value
    made = dict(zip(keys, items, strict=True))
    if isinstance(value, collections.defaultdict):
        return collections.defaultdict(value.default_factory, made)
    return made if type(value) is dict else type(value)(made)


def format_value(
    machine: Machine, value: Any, conversion: Callable[[Any], str] | None, spec: Any
) -> str:
    """One part of a formatted string."""
    if isinstance(value, torch.Tensor):
        raise GraphBreak("data-dependent", "a tensor is formatted as text")
    if conversion is not None:
        value = to_text(machine, value, conversion)
    elif python_method(machine, type(value), "__format__") is None and not spec:
        return to_text(machine, value, str)
    value = concrete(value)
    method = python_method(machine, type(value), "__format__")
    if method is None:
        return format(value, spec)
    text = machine.call(method, (value, spec), {})
    if not isinstance(text, str):
        raise TypeError(f"__format__ must return a str, not {type(text).__name__}")
    return text


def to_text(machine: Machine, value: Any, conversion: Callable[[Any], str]) -> str:
    """`str(value)`, `repr(value)` or `ascii(value)`."""
    value = concrete(value)
    kind = type(value)
    if kind in _PLAIN:
        return conversion(value)
    for name in ("__str__", "__repr__") if conversion is str else ("__repr__",):
        method = python_method(machine, kind, name)
        if method is not None:
            return _text_of(machine, method, value, name, conversion)
        if lookup(machine, kind, name) not in (getattr(object, name), MISSING):
            break
    if isinstance(value, BaseException):
        return _exception_text(machine, value, conversion)
    if isinstance(value, (set, frozenset)) and kind not in (set, frozenset):
        return conversion(value)
    return conversion(formattable(machine, value))


def _text_of(
    machine: Machine, method: Any, value: Any, name: str, conversion: Callable[[Any], str]
) -> str:
    text = machine.call(method, (value,), {})
    if not isinstance(text, str):
        raise TypeError(f"{name} returned non-string (type {type(text).__name__})")
    return text.encode("ascii", "backslashreplace").decode() if conversion is ascii else text


def exception_arguments(machine: Machine, error: BaseException) -> tuple[Any, ...]:
    """Its `args`; of one that existed before the call all that its text is made of is read, and so guarded."""
    if not machine.objects.is_known(error):
        return error.args
    for cls in type(error).__mro__:
        for name, raw in vars(cls).items():
            if isinstance(raw, types.MemberDescriptorType) and cls.__module__ == "builtins":
                load_attr(machine, error, name)
    found: tuple[Any, ...] = load_attr(machine, error, "args")
    return found


def _exception_text(
    machine: Machine, error: BaseException, conversion: Callable[[Any], str]
) -> str:
    read = exception_arguments(machine, error)
    args = tuple(formattable(machine, arg) for arg in read)
    if all(new is old for new, old in zip(args, read, strict=True)):
        return conversion(error)
    if conversion is str:
        return str(args[0]) if len(args) == 1 else str(args)
    return f"{type(error).__name__}({', '.join(map(conversion, args))})"


def holds_tensor(value: Any, depth: int = 0) -> bool:
    """Whether a value is a tensor or a container with one in it."""
    if isinstance(value, torch.Tensor):
        return True
    if depth > 8:
        return False
    if isinstance(value, dict):
        return any(holds_tensor(item, depth + 1) for item in dict.values(value))
    if isinstance(value, (list, tuple)):
        return any(holds_tensor(item, depth + 1) for item in value)
    return False
