"""Subscripts: `obj[key]`, `obj[key] = value`, `del obj[key]`."""

from __future__ import annotations

import collections
import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.classes import MISSING, is_trusted, lookup, python_method
from flambeau_capture.interpreter.keys import native_key
from flambeau_capture.interpreter.protocols import as_index
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


_SEQUENCES = frozenset({list, tuple, str, bytes, bytearray, range, collections.deque, torch.Size})


def load_item(machine: Machine, obj: Any, key: Any) -> Any:
    """`obj[key]`."""
    kind = type(obj)
    if (kind is list or kind is tuple) and type(key) is int:
        return obj[key]
    if isinstance(obj, torch.Tensor):
        if machine.arrays is not None:
            key = machine.arrays.tensor_key(key)
        return machine.tape.getitem(obj, _tensor_index(machine, key))
    if isinstance(obj, type):
        method = python_method(machine, type(obj), "__getitem__")
        if method is not None:
            return machine.call(method, (obj, key), {})
        method = python_method(machine, obj, "__class_getitem__")
        if method is not None and not is_trusted(method.__module__):
            return machine.call(method, (obj, key), {})
        return operator.getitem(obj, key)  # type: ignore[call-overload]
    method = python_method(machine, kind, "__getitem__")
    if method is not None:
        return machine.call(method, (obj, key), {})
    if isinstance(obj, dict):
        key = native_key(machine, key, obj)
        if machine.objects.is_known(obj):
            return machine.lazy_dict_item(obj, key)
        return _dict_item(machine, obj, key)
    machine.guard_native_read(obj)
    return obj[as_index(machine, key) if kind in _SEQUENCES else key]


def _tensor_index(machine: Machine, key: Any) -> Any:
    """An index of a tensor: torch takes what has items for a sequence of indices; graphs hold lists, no ranges."""
    if isinstance(key, range):
        return list(key)
    if isinstance(key, tuple) and any(isinstance(item, range) for item in key):
        return tuple(list(item) if isinstance(item, range) else item for item in key)
    is_sequence = lookup(machine, type(key), "__getitem__") is not MISSING
    return key if is_sequence else as_index(machine, key)


def _dict_item(machine: Machine, obj: dict[Any, Any], key: Any) -> Any:
    """An entry; `__missing__` and factories written in Python are interpreted."""
    try:
        return dict.__getitem__(obj, key)
    except KeyError:
        if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
            value = machine.call(obj.default_factory, (), {})
            obj[key] = value
            return value
        missing = python_method(machine, type(obj), "__missing__")
        if missing is not None:
            return machine.call(missing, (obj, key), {})
        raise


def store_item(machine: Machine, obj: Any, key: Any, value: Any) -> None:
    """`obj[key] = value`."""
    if isinstance(obj, torch.Tensor):
        if machine.arrays is not None:
            key = machine.arrays.tensor_key(key)
            value = machine.arrays.assigned_to_tensor(obj, value)
        machine.tape.setitem(obj, _tensor_index(machine, key), value)
        return
    method = python_method(machine, type(obj), "__setitem__")
    if method is not None:
        machine.call(method, (obj, key, value), {})
        return
    _check_native(machine, obj)
    obj[_native_index(machine, obj, key)] = value


def delete_item(machine: Machine, obj: Any, key: Any) -> None:
    """`del obj[key]`."""
    method = python_method(machine, type(obj), "__delitem__")
    if method is not None:
        machine.call(method, (obj, key), {})
        return
    _check_native(machine, obj)
    del obj[_native_index(machine, obj, key)]


def _native_index(machine: Machine, obj: Any, key: Any) -> Any:
    if isinstance(obj, dict):
        return native_key(machine, key, obj)
    return as_index(machine, key) if type(obj) in _SEQUENCES else key


def _check_native(machine: Machine, obj: Any) -> None:
    if machine.objects.is_known(obj) and not isinstance(obj, (tuple, types.MappingProxyType)):
        raise GraphBreak(
            "unsupported-mutation", f"an item of a {type(obj).__name__} is set or deleted"
        )
