"""Values as text: `str`, `repr`, `format`, f-strings, `%` and `str.format`.

The methods of the program's classes are interpreted. Native formatting is given plain values as
they are, and stand-ins for objects whose text is made by Python. The text of the graph's own values
is a `DeferredString`. Templates are then filled in piece by piece:

    "%s: %.2f" % (name, loss)     ->     "x: " followed by the later `"%.2f" % loss`
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import re
import string
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import guard_operands, load_item
from flambeau_capture.interpreter.semantics.native_calls import Interception
from flambeau_capture.interpreter.values.classes import (
    IDENTITY_TYPES,
    MISSING,
    Proxy,
    lookup,
    python_method,
)
from flambeau_capture.interpreter.values.deferred_strings import (
    DeferredString,
    ShownTensor,
    concatenated,
    joined_by,
    needs_characters,
    readable,
    shown_class,
    text_of_number,
    text_of_operation,
    text_of_tensor,
    text_of_text,
)
from flambeau_capture.interpreter.values.program_functions import address_read
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.size_floats import is_unbacked
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs


_PLAIN = frozenset({
    str, int, float, bool, complex, bytes, type(None), torch.dtype, torch.device, torch.Size, range,
    slice,
})  # fmt: skip
_SHOWING_ADDRESSES = (object.__repr__, types.FunctionType.__repr__)
_TEXT_METHODS = ("__str__", "__repr__", "__format__")
_NUMBERS = frozenset({torch.SymInt, torch.SymFloat})
_WITHIN_ITSELF: dict[type, str] = {
    list: "[...]", tuple: "(...)", dict: "{...}", collections.deque: "[...]",
    collections.OrderedDict: "...", torch.Size: "(...)", set: "set(...)",
    frozenset: "frozenset(...)",
}  # fmt: skip
"""Type of container -> how its text shows the container itself."""
_HOLDERS = frozenset(_WITHIN_ITSELF)


def is_pending(value: Any) -> bool:
    """Whether the text of a value exists only after the graph: of a tensor, a symbolic number."""
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
    """Whether a method of the program makes the text of a value, or of an item of a container."""
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
    """`value`, or its stand-in for native formatting; GraphBreak if a tensor's contents show."""
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
            value = machine.objects.whole_dict(value)
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
    machine.state_of(Texts).of_numbers = True
    return text_of_number(value, conversion, spec)


_TEXT_OF_VALUE = (int, float, complex, str, bytes)
"""Types whose C methods make the text of the plain value in an object."""


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
            if issubclass(kind, _TEXT_OF_VALUE):
                return machine.state_of(Interception).call(machine, conversion, (value,), {})
            break
    if isinstance(value, BaseException):
        return _exception_text(machine, value, conversion)
    if isinstance(value, (set, frozenset)) and kind not in (set, frozenset):
        return conversion(value)
    if kind not in IDENTITY_TYPES:
        guard_operands(machine, "__repr__", value)
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


@dataclass(slots=True)
class Texts:
    """The texts that one capture makes."""

    shown: list[Any] = field(default_factory=list)
    """Containers whose text is being made, the outermost first."""
    of_numbers: bool = False
    """Whether a text was made of a symbolic number, which can still be looked at."""


def _in_ascii(text: Any) -> Any:
    raise GraphBreak("data-dependent", "ascii() of an object that holds tensors")


def _text_of_holder(machine: Machine, value: Any, conversion: Callable[[Any], str]) -> Any:
    """The text of a container with tensors in it, made of the texts of its items."""
    if conversion is ascii:
        return _in_ascii(value)
    shown = machine.state_of(Texts).shown
    if any(value is outer for outer in shown):
        return _WITHIN_ITSELF[type(value)]
    if isinstance(value, dict) and machine.objects.is_known(value):
        value = machine.objects.whole_dict(value)
    shown.append(value)
    try:
        return _holder_text(machine, value)
    finally:
        shown.pop()


def text_of_contents(machine: Machine, value: Any, kind: Any) -> Any:
    """`kind.__repr__(value)`, of a list, tuple or dict: past what a subclass makes of it."""
    if type(value) is kind:
        return to_text(machine, value, repr)
    shown = machine.state_of(Texts).shown
    if any(value is outer for outer in shown):
        return _WITHIN_ITSELF[kind]
    shown.append(value)
    try:
        items = dict.items(value) if kind is dict else kind.__iter__(value)
        return to_text(machine, kind(items), repr)
    finally:
        shown.pop()


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
    """`error.args`; if it existed before the call, all that its text depends on is guarded."""
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
    machine: Machine, error: BaseException, args: Args, conversion: Callable[[Any], str]
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


# ---------------------------------------------------------------- templates


_SPECIFIER = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<form>[#0\- "
    r"+]*(?:\d+)?(?:\.\d*)?)[hlL]?(?P<type>[diouxXeEfFgGcrsa%])"
)
_CONVERSIONS: dict[str | None, Callable[[Any], str] | None] = {
    None: None, "s": str, "r": repr, "a": ascii,
}  # fmt: skip


# ---------------------------------------------------------------- template % values


def percent(machine: Machine, template: str, values: Any) -> Any:
    """`template % values`."""
    given = values if isinstance(values, tuple) else (values,)
    pending = holds_pending(values)
    in_python = _has_items_in_python(machine, values)
    if not (pending or in_python or any(asks_python(machine, value) for value in given)):
        return template % _percent_values(machine, values)
    found = list(_SPECIFIER.finditer(template))
    if not _takes(template, found, given):
        if pending:
            raise _too_hard(template)
        return template % _percent_values(machine, values)
    pieces: list[Any] = []
    end = 0
    following = iter(given)
    for spec in found:
        pieces.append(template[end : spec.start()])
        end = spec.end()
        if spec["type"] == "%":
            pieces.append("%")
        else:
            key = spec["key"]
            value = next(following) if key is None else load_item(machine, values, key)
            pieces.append(_one(machine, spec["form"], spec["type"], value))
    return concatenated((*pieces, template[end:]))


def _has_items_in_python(machine: Machine, mapping: Any) -> bool:
    """Whether a method of the program gives items of a mapping, or those that are missing."""
    kind = type(mapping)
    return issubclass(kind, dict) and (
        python_method(machine, kind, "__missing__") is not None
        or python_method(machine, kind, "__getitem__") is not None
        or issubclass(kind, collections.defaultdict)
    )


def _percent_values(machine: Machine, values: Any) -> Any:
    """The values for a template: a tuple of any class gives its items."""
    if isinstance(values, tuple):
        return tuple([formattable(machine, item) for item in tuple.__iter__(values)])
    return formattable(machine, values)


def _takes(template: str, found: list[re.Match[str]], given: Args) -> bool:
    """Whether these are all the specifiers of a template, and it takes what it is given."""
    if "%" in _SPECIFIER.sub("", template):
        return False
    taking = [spec for spec in found if spec["type"] != "%"]
    if any(spec[0] != "%%" for spec in found if spec["type"] == "%"):
        return False
    if any(spec["key"] is not None for spec in taking):
        return (
            len(given) == 1
            and isinstance(given[0], dict)
            and all(spec["key"] is not None for spec in taking)
        )
    return len(taking) == len(given)


def _too_hard(template: str) -> GraphBreak:
    return GraphBreak("data-dependent", f"{template!r} is filled in with a tensor")


def _one(machine: Machine, form: str, kind: str, value: Any) -> Any:
    """`f"%{form}{kind}" % (value,)`."""
    if kind in "sra":
        text = to_text(machine, value, _CONVERSIONS[kind] or str)
        if not form:
            return text
        if type(text) is not DeferredString:
            return f"%{form}s" % text
        return text_of_operation(operator.mod, (f"%{form}s", text))
    if not is_pending(value):
        return f"%{form}{kind}" % (formattable(machine, value),)
    if not _is_number_for(value, kind):
        raise _too_hard(f"%{form}{kind}")
    if isinstance(value, torch.Tensor):
        value = ShownTensor(machine, value, shown_class(machine, value), None)
    return text_of_operation(operator.mod, (f"%{form}{kind}", value))


def _is_number_for(value: Any, kind: str) -> bool:
    """Whether a conversion takes every number that `value` may turn out to be."""
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.dtype.is_complex or any(size != 1 for size in value.shape):
            return False
        floating, boolean = value.dtype.is_floating_point, value.dtype is torch.bool
    else:
        floating, boolean = type(value) is torch.SymFloat, type(value) is torch.SymBool
        if type(value) is DeferredString:
            return False
    if kind in "eEfFgG":
        return True
    return not floating and (kind in "diu" or (kind in "xXo" and not boolean))


# ---------------------------------------------------------------- template.format(...)


def fill_in(machine: Machine, template: str, args: Args, kwargs: Kwargs) -> Any:
    """`template.format(*args, **kwargs)`."""
    given = (*args, *kwargs.values())
    if not holds_pending(given) and not any(asks_python(machine, value) for value in given):
        shown = [formattable(machine, arg) for arg in args]
        return template.format(*shown, **{k: formattable(machine, v) for k, v in kwargs.items()})
    return _filled_in(machine, template, args, kwargs, itertools.count())


def fill_in_map(machine: Machine, template: str, mapping: Any) -> Any:
    """`template.format_map(mapping)`."""
    if _has_items_in_python(machine, mapping):
        return _filled_in(machine, template, (), mapping, itertools.count())
    return template.format_map(concrete(formattable(machine, mapping)))


def _filled_in(
    machine: Machine, template: str, args: Args, kwargs: Kwargs, numbers: Iterator[int]
) -> Any:
    pieces: list[Any] = []
    for literal, name, spec, conversion in string.Formatter().parse(template):
        pieces.append(literal)
        if name is not None:
            value = _field(machine, name, args, kwargs, numbers)
            if spec and "{" in spec:
                spec = _filled_in(machine, spec, args, kwargs, numbers)
            if conversion not in _CONVERSIONS:
                raise GraphBreak("data-dependent", f"{template!r} is filled in with a tensor")
            pieces.append(format_value(machine, value, _CONVERSIONS[conversion], spec or ""))
    return concatenated(pieces)


_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\]]+)\]")


def _field(machine: Machine, field: str, args: Args, kwargs: Kwargs, numbers: Iterator[int]) -> Any:
    """What a replacement field names."""
    first = re.split(r"[.\[]", field, maxsplit=1)[0]
    position = next(numbers) if not first else int(first) if first.isdecimal() else None
    if position is not None and type(kwargs) is not dict:
        raise ValueError("Format string contains positional fields")
    if position is not None and position >= len(args):
        raise IndexError(f"Replacement index {position} out of range for positional args tuple")
    value = load_item(machine, kwargs, first) if position is None else args[position]
    steps = list(_STEP.finditer(field, len(first)))
    if sum(len(step[0]) for step in steps) != len(field) - len(first):
        raise GraphBreak("data-dependent", f"a field {field!r} is filled in with a tensor")
    return functools.reduce(functools.partial(_step, machine), steps, value)


def _step(machine: Machine, value: Any, step: re.Match[str]) -> Any:
    name, key = step[1], step[2]
    if name is not None:
        return load_attr(machine, value, name)
    return load_item(machine, value, int(key) if key.isdecimal() else key)
