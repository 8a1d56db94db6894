"""`template % values` and `template.format(...)` where a value's text is known only when the graph
has run: piece by piece.

    "%s: %.2f" % (name, loss)     ->     "x: " followed by what `"%.2f" % loss` is then

Templates whose values are all known are given to native formatting as they are.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import string
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.formatting import (
    asks_python,
    format_value,
    formattable,
    holds_pending,
    is_pending,
    to_text,
)
from flambeau_capture.interpreter.semantics.items import load_item
from flambeau_capture.interpreter.values.deferred_strings import (
    DeferredString,
    ShownTensor,
    concatenated,
    shown_class,
    text_of_operation,
)
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_capture.interpreter.machine import Machine

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
    if not pending and not any(asks_python(machine, value) for value in given):
        return template % formattable(machine, values)
    found = list(_SPECIFIER.finditer(template))
    if not _takes(template, found, given):
        if pending:
            raise _too_hard(template)
        return template % formattable(machine, values)
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


def _takes(template: str, found: list[re.Match[str]], given: tuple[Any, ...]) -> bool:
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


def fill_in(machine: Machine, template: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`template.format(*args, **kwargs)`."""
    given = (*args, *kwargs.values())
    if not holds_pending(given) and not any(asks_python(machine, value) for value in given):
        shown = [formattable(machine, arg) for arg in args]
        return template.format(*shown, **{k: formattable(machine, v) for k, v in kwargs.items()})
    return _filled_in(machine, template, args, kwargs, itertools.count())


def _filled_in(
    machine: Machine,
    template: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    numbers: Iterator[int],
) -> Any:
    pieces: list[Any] = []
    for literal, field, spec, conversion in string.Formatter().parse(template):
        pieces.append(literal)
        if field is not None:
            value = _field(machine, field, args, kwargs, numbers)
            if spec and "{" in spec:
                spec = _filled_in(machine, spec, args, kwargs, numbers)
            if conversion not in _CONVERSIONS:
                raise GraphBreak("data-dependent", f"{template!r} is filled in with a tensor")
            pieces.append(format_value(machine, value, _CONVERSIONS[conversion], spec or ""))
    return concatenated(pieces)


_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\]]+)\]")


def _field(
    machine: Machine,
    field: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    numbers: Iterator[int],
) -> Any:
    """What a replacement field names."""
    first = re.split(r"[.\[]", field, maxsplit=1)[0]
    position = next(numbers) if not first else int(first) if first.isdecimal() else None
    if position is not None and position >= len(args):
        raise IndexError(f"Replacement index {position} out of range for positional args tuple")
    value = kwargs[first] if position is None else args[position]
    steps = list(_STEP.finditer(field, len(first)))
    if sum(len(step[0]) for step in steps) != len(field) - len(first):
        raise GraphBreak("data-dependent", f"a field {field!r} is filled in with a tensor")
    return functools.reduce(functools.partial(_step, machine), steps, value)


def _step(machine: Machine, value: Any, step: re.Match[str]) -> Any:
    name, key = step[1], step[2]
    if name is not None:
        return load_attr(machine, value, name)
    return load_item(machine, value, int(key) if key.isdecimal() else key)
