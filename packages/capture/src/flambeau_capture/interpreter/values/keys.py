"""Hashing and equality of objects of the program, where native code (dict, set, list) does them.

Native code calls `__hash__` and `__eq__` written in Python by itself. What it would call is
interpreted first, which guards what the methods read, and the answers must agree: an object whose
attributes the frame has changed may answer differently natively.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.values.classes import python_method, slot_values
from flambeau_capture.interpreter.values.numbers import concrete_key
from flambeau_capture.interpreter.values.program_functions import observe, tell_apart
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flambeau_capture.interpreter.protocols import Recorder


_PLAIN = frozenset(
    {int, float, complex, str, bytes, bool, type(None), type, torch.dtype, torch.device}
)
_CONTAINERS = frozenset({tuple, frozenset})


def native_key(machine: Recorder, key: Any, others: Iterable[Any] = ()) -> Any:
    """`key` as a dict or set may hash it and compare it with the keys in it."""
    if type(key) in _PLAIN:
        return key
    key = concrete_key(key)
    observe(machine, key)
    if hashes_in_python(machine, key):
        wanted = _interpreted_hash(machine, key)
        if wanted != _natively(hash, key):
            raise _changed(key)
        for other in others:
            if other is not key and type(other) not in _PLAIN and hash(other) == wanted:
                _check_equality(machine, other, key)
    elif id(others) in machine.objects.tracked_copies and machine.objects.is_known(key):
        # A container of the program does not hold it: in later calls that must be so, too.
        others = [other for other in others if type(other) is type(key)]
        if not any(other is key for other in others):
            for other in others:
                tell_apart(machine, other, key)
    return key


def _check_key(machine: Recorder, key: Any, others: Iterable[Any]) -> None:
    """Interpret the methods that putting a key among others calls, and call none natively."""
    hash_method = python_method(machine, type(key), "__hash__")
    if hash_method is None:
        return
    wanted = hash(machine.call(hash_method, (key,), {}))
    for other in others:
        method = python_method(machine, type(other), "__eq__")
        if method is not None and hash(other) == wanted:
            machine.call(method, (other, key), {})


def known_key(machine: Recorder, key: Any, others: Any) -> Any:
    """A key of a container from before the call, to be put among `others` in its copy."""
    if not hashes_in_python(machine, key):
        return key
    # What native code is to call natively must have no side effects: seen by interpreting it,
    # before it is called.
    before = machine.objects.side_effects_so_far()
    _check_key(machine, key, others)
    if machine.objects.side_effects_so_far() != before:
        raise _has_effects("__hash__ or __eq__", key)
    return native_key(machine, key, others)


def _has_effects(methods: str, key: Any) -> GraphBreak:
    name = type(key).__qualname__
    return GraphBreak("unknown-c-function", f"the {methods} of a {name}, a key, has effects")


def hashes_in_python(machine: Recorder, value: Any) -> bool:
    """Whether hashing a value calls a `__hash__` of the program."""
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind in _CONTAINERS:
        return any(hashes_in_python(machine, item) for item in value)
    return not is_trusted(kind.__module__) and python_method(machine, kind, "__hash__") is not None


def _interpreted_hash(machine: Recorder, value: Any) -> int:
    if type(value) in _CONTAINERS:
        for item in value:
            if hashes_in_python(machine, item):
                if _interpreted_hash(machine, item) != _natively(hash, item):
                    raise _changed(item)
        return hash(value)
    method = python_method(machine, type(value), "__hash__")
    if method is None:
        return hash(value)
    found = _call_without_effects(machine, method, value)
    if type(found) is int and -(1 << 63) <= found < 1 << 63:
        return -2 if found == -1 else found
    return hash(found)


def _call_without_effects(machine: Recorder, method: Any, value: Any) -> Any:
    """The result of a `__hash__` that native code may repeat; the object may keep it."""
    before = _attributes(machine, value)
    found = machine.call(method, (value,), {})
    kept = _attributes(machine, value)
    if not _same(before, kept):
        machine.call(method, (value,), {})
        if not _same(kept, _attributes(machine, value)):
            raise _has_effects("__hash__", value)
    return found


def _attributes(machine: Recorder, value: Any) -> dict[str, Any]:
    own = getattr(value, "__dict__", None) or {}
    return {**own, **slot_values(value), **(machine.objects.pending_writes_of(value) or {})}


def _same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)


def _check_equality(machine: Recorder, left: Any, right: Any) -> None:
    method = python_method(machine, type(left), "__eq__")
    if method is None or type(left) in _CONTAINERS:
        return
    answer = machine.call(method, (left, right), {})
    if answer is not NotImplemented and bool(answer) is not _natively(_equal, left, right):
        raise _changed(left)


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _natively(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """What native code gets of methods that raised nothing when they were interpreted."""
    try:
        return function(value, *others)
    except Exception as error:  # the methods read what the frame has changed
        raise _changed(value) from error


def _changed(value: Any) -> GraphBreak:
    return GraphBreak(
        "unknown-c-function",
        f"a {type(value).__qualname__}, whose methods read what the frame has changed, is hashed "
        f"or compared by native code",
    )
