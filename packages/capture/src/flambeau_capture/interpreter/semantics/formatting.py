"""Values as text: `str`, `repr`, `format` and f-strings, with the methods of the program's classes
interpreted.

Native formatting is given the values themselves where they are plain, and stand-ins for objects
whose text is made by Python. What is made of the graph's own values is a `DeferredString`.
"""

from __future__ import annotations

import collections
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import load_item
from flambeau_capture.interpreter.values.classes import MISSING, Proxy, lookup, python_method
from flambeau_capture.interpreter.values.deferred_strings import (
    DeferredString,
    concatenated,
    joined_by,
    needs_characters,
    readable,
    text_of_number,
    text_of_tensor,
    text_of_text,
)
from flambeau_capture.interpreter.values.program_functions import address_read
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.size_floats import is_unbacked
from flambeau_prims.sizes_node import from_symbolic

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
_SHOWING_ADDRESSES = (object.__repr__, types.FunctionType.__repr__)
_TEXT_METHODS = ("__str__", "__repr__", "__format__")
_NUMBERS = frozenset({torch.SymInt, torch.SymFloat})
_WITHIN_ITSELF: dict[type, str] = {
    list: "[...]",
    tuple: "(...)",
    dict: "{...}",
    collections.deque: "[...]",
    collections.OrderedDict: "...",
    torch.Size: "(...)",
    set: "set(...)",
    frozenset: "frozenset(...)",
}
"""Type of container -> its text inside of its own text."""
_HOLDERS = frozenset(_WITHIN_ITSELF)


def is_pending(value: Any) -> bool:
    """Whether the text of a value is made when the graph has run: of a tensor, a symbolic number, a
    text of such.
    """
    kind = type(value)
    if kind is torch.SymBool:
        return is_unbacked(from_symbolic(value))
    return kind in _NUMBERS or kind is DeferredString or isinstance(value, torch.Tensor)


def holds_pending(value: Any, depth: int = 0) -> bool:
    """Whether `is_pending`, or a container with such in it."""
    kind = type(value)
    if (kind in _PLAIN and kind is not torch.Size) or depth > 8:
        return False
    if isinstance(value, dict):
        return any(holds_pending(item, depth + 1) for item in dict.values(value))
    if isinstance(value, (list, tuple, collections.deque)):
        return any(holds_pending(item, depth + 1) for item in value)
    return is_pending(value)


def asks_python(machine: Machine, value: Any, depth: int = 0) -> bool:
    """Whether the text of a value, or of what a container holds, is made by a method of the
    program, which may show what is pending.
    """
    kind = type(value)
    if kind in _PLAIN or depth > 8:
        return False
    if kind in _HOLDERS:
        items = (*value, *dict.values(value)) if isinstance(value, dict) else value
        return any(asks_python(machine, item, depth + 1) for item in items)
    return any(python_method(machine, kind, name) is not None for name in _TEXT_METHODS)


class InterpretedText(Proxy):
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
    """`value`, or what stands for it in native formatting; a graph break where that would show a
    tensor's contents.
    """
    value = readable(concrete(value))
    if is_pending(value):
        raise GraphBreak("data-dependent", "a tensor is formatted as text")
    kind = type(value)
    if kind in _PLAIN or issubclass(kind, Proxy):
        return value
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
        items = [formattable(machine, item) for item in value]
        if kind.__repr__ is tuple.__repr__:
            return tuple(items)
        # A structure of C (`os.stat_result`) names its fields.
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else kind(items)
    if isinstance(value, BaseException):
        for item in exception_arguments(machine, value):
            if formattable(machine, item) is not item:
                return InterpretedText(machine, value)
    if kind.__repr__ in _SHOWING_ADDRESSES:
        address_read(machine, value)
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
) -> Any:
    """One part of a formatted string."""
    spec = readable(spec)
    if type(spec) is DeferredString:
        raise needs_characters("the text of a tensor is a format specification")
    if is_pending(value):
        return _deferred_string(machine, value, conversion, spec)
    if conversion is not None:
        value = to_text(machine, value, conversion)
        if type(value) is DeferredString:
            return text_of_text(value, None, spec)
    elif python_method(machine, type(value), "__format__") is None and not spec:
        return to_text(machine, value, str)
    value = concrete(value)
    method = python_method(machine, type(value), "__format__")
    if method is None:
        return format(value, spec)
    text = machine.call(method, (value, spec), {})
    if not isinstance(text, (str, DeferredString)):
        raise TypeError(f"__format__ must return a str, not {type(text).__name__}")
    return text


def _deferred_string(
    machine: Machine, value: Any, conversion: Callable[[Any], str] | None, spec: str
) -> DeferredString:
    if type(value) is DeferredString:
        return text_of_text(value, conversion, spec)
    if isinstance(value, torch.Tensor):
        return text_of_tensor(machine, value, conversion, spec)
    machine.texts_of_numbers = True
    return text_of_number(value, conversion, spec)


def to_text(machine: Machine, value: Any, conversion: Callable[[Any], str]) -> Any:
    """`str(value)`, `repr(value)` or `ascii(value)`."""
    if is_pending(value):
        return _deferred_string(machine, value, conversion, "")
    if type(value) in _HOLDERS and (holds_pending(value) or asks_python(machine, value)):
        return _text_of_holder(machine, value, conversion)
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
) -> Any:
    text = machine.call(method, (value,), {})
    if type(text) is DeferredString:
        return _in_ascii(text) if conversion is ascii else text
    if not isinstance(text, str):
        raise TypeError(f"{name} returned non-string (type {type(text).__name__})")
    return text.encode("ascii", "backslashreplace").decode() if conversion is ascii else text


def _in_ascii(text: Any) -> Any:
    raise GraphBreak("data-dependent", "ascii() of an object that holds tensors")


def _text_of_holder(machine: Machine, value: Any, conversion: Callable[[Any], str]) -> Any:
    """The text of a container with tensors in it, made of the texts of its items."""
    if conversion is ascii:
        return _in_ascii(value)
    if any(value is outer for outer in machine.shown):
        return _WITHIN_ITSELF[type(value)]
    if isinstance(value, dict) and machine.objects.is_known(value):
        value = machine.whole_dict(value)
    machine.shown.append(value)
    try:
        return _holder_text(machine, value)
    finally:
        machine.shown.pop()


def _holder_text(machine: Machine, value: Any) -> Any:
    kind = type(value)
    if isinstance(value, dict):
        pairs = [
            (to_text(machine, key, repr), to_text(machine, item, repr))
            for key, item in value.items()
        ]
        if kind is dict:
            return _enclosed("{", [concatenated((key, ": ", item)) for key, item in pairs], "}")
        if sys.version_info >= (3, 12):
            items = [concatenated((key, ": ", item)) for key, item in pairs]
            return _enclosed("OrderedDict({", items, "})")
        items = [concatenated(("(", key, ", ", item, ")")) for key, item in pairs]
        return _enclosed("OrderedDict([", items, "])")
    items = [to_text(machine, item, repr) for item in value]
    if kind is torch.Size:
        return _enclosed("torch.Size([", items, "])")
    if kind is tuple:
        return _enclosed("(", items, ",)" if len(items) == 1 else ")")
    if kind is list:
        return _enclosed("[", items, "]")
    if kind is set:
        return _enclosed("{", items, "}")
    if kind is frozenset:
        return _enclosed("frozenset({", items, "})")
    bound = "" if value.maxlen is None else f", maxlen={value.maxlen}"
    return _enclosed("deque([", items, f"]{bound})")


def _enclosed(begin: str, items: list[Any], end: str) -> Any:
    return concatenated((begin, joined_by(", ", items), end))


def exception_arguments(machine: Machine, error: BaseException) -> tuple[Any, ...]:
    """Its `args`; of one that existed before the call all that its text is made of is read, and so
    guarded.
    """
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
    if any(holds_pending(arg) for arg in read):
        return _text_of_error(machine, error, read, conversion)
    args = tuple(formattable(machine, arg) for arg in read)
    if all(new is old for new, old in zip(args, read, strict=True)):
        return conversion(error)
    if conversion is str:
        return str(args[0]) if len(args) == 1 else str(args)
    return f"{type(error).__name__}({', '.join(map(conversion, args))})"


def _text_of_error(
    machine: Machine, error: BaseException, args: tuple[Any, ...], conversion: Callable[[Any], str]
) -> Any:
    """The text of an exception with tensors, or texts of such, among its arguments."""
    kind = type(error)
    shows_one = lookup(machine, kind, "__str__") is KeyError.__str__ and len(args) == 1
    if conversion is str and shows_one:
        return to_text(machine, args[0], repr)
    if conversion is str and lookup(machine, kind, "__str__") is BaseException.__str__:
        return to_text(machine, args[0] if len(args) == 1 else args, str)
    if conversion is repr and lookup(machine, kind, "__repr__") is BaseException.__repr__:
        shown = joined_by(", ", [to_text(machine, arg, repr) for arg in args])
        return concatenated((f"{kind.__name__}(", shown, ")"))
    raise GraphBreak("data-dependent", f"a {kind.__name__} with a tensor is formatted as text")


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
