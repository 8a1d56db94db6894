"""Building, growing and unpacking containers; formatted strings."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.bytecode.instructions import NULL_AFTER
from flambeau_capture.interpreter.opcodes.functions import function_text, raise_unpacking_error
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.formatting import format_value
from flambeau_capture.interpreter.semantics.items import load_item, native_iterable, starred
from flambeau_capture.interpreter.values.classes import MISSING, Proxy, lookup
from flambeau_capture.interpreter.values.deferred_strings import concatenated
from flambeau_capture.interpreter.values.keys import native_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Frame

_CONVERSIONS: dict[int, Callable[[Any], str]] = {1: str, 2: repr, 3: ascii}


def _pop_many(frame: Frame, count: int) -> list[Any]:
    if not count:
        return []
    stack = frame.stack
    items = stack[-count:]
    del stack[-count:]
    return items


def BUILD_TUPLE(frame: Frame, arg: int) -> None:
    frame.stack.append(tuple(_pop_many(frame, arg)))


def BUILD_LIST(frame: Frame, arg: int) -> None:
    frame.stack.append(_pop_many(frame, arg))


def BUILD_SET(frame: Frame, arg: int) -> None:
    frame.stack.append(_set_of(frame, _pop_many(frame, arg)))


def _set_of(frame: Frame, items: list[Any]) -> set[Any]:
    made: set[Any] = set()
    for item in items:
        made.add(native_key(frame.machine, item, made))
    return made


def BUILD_MAP(frame: Frame, arg: int) -> None:
    items = _pop_many(frame, 2 * arg)
    made: dict[Any, Any] = {}
    for key, item in zip(items[::2], items[1::2], strict=True):
        made[native_key(frame.machine, key, made)] = item
    frame.stack.append(made)


def BUILD_CONST_KEY_MAP(frame: Frame, arg: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _pop_many(frame, arg), strict=True)))


def BUILD_STRING(frame: Frame, arg: int) -> None:
    frame.stack.append(concatenated(_pop_many(frame, arg)))


def BUILD_SLICE(frame: Frame, arg: int) -> None:
    frame.stack.append(slice(*_pop_many(frame, arg)))


def LIST_APPEND(frame: Frame, arg: int) -> None:
    item = frame.stack.pop()
    frame.stack[-arg].append(item)


def SET_ADD(frame: Frame, arg: int) -> None:
    item = frame.stack.pop()
    items = frame.stack[-arg]
    items.add(native_key(frame.machine, item, items))


def MAP_ADD(frame: Frame, arg: int) -> None:
    stack = frame.stack
    value, key = stack.pop(), stack.pop()
    made = stack[-arg]
    made[native_key(frame.machine, key, made)] = value


def LIST_EXTEND(frame: Frame, arg: int) -> None:
    stack = frame.stack
    value = stack.pop()
    items = starred(frame.machine, value)
    if items is None:
        kind = type(value).__name__
        raise TypeError(f"Value after * must be an iterable, not {kind}")
    stack[-arg].extend(items)


def SET_UPDATE(frame: Frame, arg: int) -> None:
    target = frame.stack[-arg - 1]
    for item in native_iterable(frame.machine, frame.stack.pop()):
        target.add(native_key(frame.machine, item, target))


def DICT_UPDATE(frame: Frame, arg: int) -> None:
    mapping = frame.stack.pop()
    entries = _as_dict(frame, mapping)
    if entries is None:
        raise TypeError(f"{type(mapping).__name__!r} object is not a mapping")
    frame.stack[-arg].update(entries)


def DICT_MERGE(frame: Frame, arg: int) -> None:
    stack = frame.stack
    mapping = stack.pop()
    # Below the dict stand the positional arguments and the function.
    function = stack[-arg - (3 if NULL_AFTER else 2)]
    entries, target = _as_dict(frame, mapping), stack[-arg]
    if entries is None:
        raise_unpacking_error(frame.machine, function, "**", "a mapping", mapping)
    for key in entries:
        if key in target:
            name = function_text(frame.machine, function)
            raise TypeError(f"{name} got multiple values for keyword argument '{key}'")
    target.update(entries)


def _as_dict(frame: Frame, mapping: Any) -> dict[Any, Any] | None:
    """The entries of a mapping, read by `keys()` and `__getitem__` if it is not a dict, or None."""
    machine = frame.machine
    if isinstance(mapping, dict) and not machine.objects.is_known(mapping):
        return mapping
    try:
        keys = load_attr(machine, mapping, "keys")
    except AttributeError:
        return None
    names = native_iterable(machine, machine.call(keys, (), {}))
    return {key: load_item(machine, mapping, key) for key in names}


def LIST_TO_TUPLE(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


def _unpacked(frame: Frame, value: Any) -> Any:
    """An iterable over what is unpacked; TypeError in the words for that where it is none."""
    machine, kind = frame.machine, type(value)
    if not isinstance(value, torch.Tensor) and not issubclass(kind, Proxy):
        names = ("__iter__", "__getitem__")
        if all(lookup(machine, kind, name) in (MISSING, None) for name in names):
            raise TypeError(f"cannot unpack non-iterable {kind.__name__} object")
    return native_iterable(machine, value)


def UNPACK_SEQUENCE(frame: Frame, arg: int) -> None:
    stack = frame.stack
    value = stack.pop()
    items = value
    if type(value) is not tuple and type(value) is not list:
        items = tuple(itertools.islice(_unpacked(frame, value), arg + 1))
    if len(items) != arg:
        if len(items) < arg:
            raise ValueError(f"not enough values to unpack (expected {arg}, got {len(items)})")
        raise ValueError(f"too many values to unpack (expected {arg})")
    stack.extend(reversed(items))


def UNPACK_EX(frame: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    stack = frame.stack
    items = list(_unpacked(frame, stack.pop()))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    end = len(items) - after
    stack.extend(reversed(items[end:]))
    stack.append(items[before:end])
    stack.extend(reversed(items[:before]))


# ---------------------------------------------------------------- formatted strings


def FORMAT_VALUE(frame: Frame, arg: int) -> None:
    stack = frame.stack
    spec = stack.pop() if arg & 4 else ""
    stack[-1] = format_value(frame.machine, stack[-1], _CONVERSIONS.get(arg & 3), spec)


def CONVERT_VALUE(frame: Frame, arg: int) -> None:
    frame.stack[-1] = format_value(frame.machine, frame.stack[-1], _CONVERSIONS[arg], "")


def FORMAT_SIMPLE(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = format_value(frame.machine, frame.stack[-1], None, "")


def FORMAT_WITH_SPEC(frame: Frame, arg: Any) -> None:
    spec = frame.stack.pop()
    frame.stack[-1] = format_value(frame.machine, frame.stack[-1], None, spec)
