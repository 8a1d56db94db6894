"""Setting and deleting attributes as Python defines it: `obj.name = value`, `del obj.name`.

Follows `object.__setattr__` and `object.__delattr__`: properties and other data descriptors of the
class, then the object's own attributes. Objects made in the frame are changed. Writes to others are
kept (semantics/attributes.py) and replayed at exit.
"""

from __future__ import annotations

import enum
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.attributes import (
    break_of_thread,
    data_descriptor,
    function_attribute,
    load_global_value,
    module_table_attribute,
    own_attribute,
    show_pending_in_tables,
    store_own_attribute,
    table_for,
    update_tracked_dict,
)
from flambeau_capture.interpreter.semantics.drawn_numbers import DrawnNumbers
from flambeau_capture.interpreter.torch_calls.tensors import (
    delete_tensor_attribute,
    store_tensor_attribute,
)
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    SCALARS,
    Proxy,
    lookup,
    python_method,
)
from flambeau_capture.interpreter.values.objects import DELETED
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import HEAP_TYPE, TypeAttribute
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_MODULE_SETATTR = torch.nn.Module.__setattr__
_MODULE_DELATTR = torch.nn.Module.__delattr__


def store_attr(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """`obj.name = value`."""
    kind = type(obj)
    if issubclass(kind, torch.Tensor):
        store_tensor_attribute(machine, obj, name, value)
        return
    if issubclass(kind, type):
        _store_class_attribute(machine, obj, name, value)
        return
    if issubclass(kind, Proxy):
        obj.store_seen(name, value)
        return
    if issubclass(kind, threading.local):
        raise break_of_thread(kind, name)
    setter = python_method(machine, kind, "__setattr__")
    if setter is _MODULE_SETATTR and machine.objects.is_known(obj):
        store_module_attribute(machine, obj, name, value)
    elif setter is not None:
        machine.call(setter, (obj, name, value), {})
    else:
        generic_store(machine, obj, name, value)


def _store_class_attribute(machine: Machine, cls: type, name: str, value: Any) -> None:
    """`cls.name = value`, through the metaclass's own `__setattr__`, where it has one."""
    setter = python_method(machine, type(cls), "__setattr__")
    if setter is not None:
        machine.call(setter, (cls, name, value), {})
    else:
        store_class_attribute(machine, cls, name, value)


def store_class_attribute(machine: Machine, cls: type, name: str, value: Any) -> None:
    """What `type.__setattr__` does; for a class that existed before the call, replayed at exit."""
    if cls in machine.classes.made:
        type.__setattr__(cls, name, value)
        machine.classes.forget()
        return
    if (
        name.startswith("__")
        or issubclass(type(cls), enum.EnumMeta)
        or not cls.__flags__ & HEAP_TYPE
    ):
        detail = f"attribute {name!r} of class {cls.__qualname__} is set"
        raise GraphBreak("unsupported-mutation", detail)
    _guard_written(machine, cls, name, value)
    machine.objects.classes_written[cls, name] = (value,)
    machine.classes.forget()


def _guard_written(machine: Machine, cls: type, name: str, value: Any) -> None:
    """Guard what a trusted class holds before the frame sets it: state, and no definition. A number
    is guarded at the exit (`side_effects`), unless it only counted.
    """
    held = lookup(machine, cls, name)
    if not is_trusted(cls.__module__):
        return
    if type(held) is int:
        machine.state_of(DrawnNumbers).draw(machine, held, value)
    if (cls, name) not in machine.objects.classes_written and type(held) in SCALARS:
        if type(held) is not int:
            by_value = type(held) in (float, complex, str, bytes)
            machine.guard("EQUALS" if by_value else "IS", TypeAttribute.of(cls, name), held)
        machine.definitions.pop((id(cls), name), None)


def generic_store(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """What `object.__setattr__` does."""
    kind = type(obj)
    raw = lookup(machine, kind, name)
    if raw is not MISSING:
        what = type(raw)
        if issubclass(kind, types.ModuleType) and hasattr(what, "__set__"):
            _check_module_setting(machine, obj, name, raw)
        if what is property:
            if raw.fset is None:
                raw.__set__(obj, value)  # raises
            machine.call(raw.fset, (obj, value), {})
            return
        setter = python_method(machine, what, "__set__")
        if setter is not None:
            machine.call(setter, (raw, obj, value), {})
            return
        _check_c_attribute(machine, obj, name, raw, value)
        if kind is types.FunctionType and id(obj) not in machine.functions.made:
            setattr(_like(obj), name, value)  # raises what eager raises
    store_own_attribute(machine, obj, name, value)


def _check_module_setting(machine: Machine, module: Any, name: str, raw: Any) -> None:
    """Break at what C code or the library does when a setting of a module is set: those of
    torch.backends are descriptors of the module's class.
    """
    kind = type(module)
    if is_trusted(kind.__module__):
        raise GraphBreak("torch-state", f"{module.__name__}.{name} is set")
    if type(raw) is not property and python_method(machine, type(raw), "__set__") is None:
        raise GraphBreak("unsupported-mutation", f"{name!r} of a {kind.__qualname__} is set")


def store_module_attribute(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """`nn.Module.__setattr__` on a module from before the call, replayed through that method."""
    objects = machine.objects
    raw = lookup(machine, type(obj), name)
    if type(raw) is property:
        generic_store(machine, obj, name, value)
        return
    table_name = table_for(machine, obj, name, value)
    _check_table_entry(table_name, name, value)
    objects.add_pending_write(obj, name, value)
    machine.objects.note_attribute_write(obj, name, raw=False)
    if table_name is None:
        update_tracked_dict(machine, obj, name, value)
        return
    show_pending_in_tables(machine, obj)


_TABLE_TYPES = {
    "_parameters": torch.nn.Parameter, "_buffers": torch.Tensor, "_modules": torch.nn.Module,
}  # fmt: skip


def _check_table_entry(table_name: str | None, name: str, value: Any) -> None:
    """Raise now what `nn.Module.__setattr__` would raise in the replay, which is too late."""
    wanted = None if table_name is None else _TABLE_TYPES.get(table_name)
    if wanted is None or value is None or isinstance(value, wanted):
        return
    module = torch.nn.Module()
    getattr(module, table_name or "")[name] = None
    if isinstance(value, torch.Tensor):
        value = torch.empty(0, dtype=value.dtype)
    _MODULE_SETATTR(module, name, value)


def _check_c_attribute(machine: Machine, obj: Any, name: str, raw: Any, value: Any) -> None:
    """GraphBreak if C code would set an attribute of a known object that is no function."""
    is_c = type(raw) in (types.GetSetDescriptorType, types.MemberDescriptorType)
    is_slot = is_c and "__slots__" in raw.__objclass__.__dict__
    if not is_c or is_slot or isinstance(obj, (BaseException, types.FunctionType)):
        return
    if machine.objects.is_known(obj):
        detail = f"{name!r} of a {type(obj).__qualname__} is set, which C code does"
        raise GraphBreak("unsupported-mutation", detail)


def delete_attr(machine: Machine, obj: Any, name: str) -> None:
    """`del obj.name`."""
    kind = type(obj)
    if issubclass(kind, torch.Tensor):
        delete_tensor_attribute(machine, obj, name)
        return
    if issubclass(kind, Proxy):
        obj.delete_seen(name)
        return
    if issubclass(kind, threading.local):
        raise break_of_thread(kind, name)
    remover = python_method(machine, kind, "__delattr__")
    if remover is None and issubclass(kind, type):
        delete_class_attribute(machine, obj, name)
        return
    if remover is not None and not (remover is _MODULE_DELATTR and machine.objects.is_known(obj)):
        machine.call(remover, (obj, name), {})
        return
    generic_delete(machine, obj, name)


def delete_class_attribute(machine: Machine, obj: Any, name: str) -> None:
    """What `type.__delattr__` does."""
    if obj not in machine.classes.made:
        raise GraphBreak("unsupported-mutation", f"attribute {name!r} of {obj!r} is deleted")
    type.__delattr__(obj, name)
    machine.classes.forget()


def generic_delete(machine: Machine, obj: Any, name: str) -> None:
    """What `object.__delattr__` does."""
    raw = lookup(machine, type(obj), name)
    if type(raw) is property:
        if raw.fdel is None:
            raw.__delete__(obj)  # raises
        machine.call(raw.fdel, (obj,), {})
        return
    deleter = python_method(machine, type(raw), "__delete__")
    if deleter is not None:
        machine.call(deleter, (raw, obj), {})
        return
    objects = machine.objects
    if isinstance(obj, types.ModuleType):
        _delete_global(machine, obj, name)
        return
    if not objects.is_known(obj):
        object.__delattr__(obj, name)
        return
    if type(obj) is types.FunctionType and raw is not MISSING:
        # What is deleted reads as its default: None, mostly.
        like = _like(obj)
        delattr(like, name)
        store_own_attribute(machine, obj, name, getattr(like, name))
        return
    _check_own(machine, obj, name, raw)
    objects.add_pending_write(obj, name, DELETED)
    machine.objects.note_attribute_write(obj, name, raw=not isinstance(obj, torch.nn.Module))
    update_tracked_dict(machine, obj, name, DELETED)


def _delete_global(machine: Machine, module: types.ModuleType, name: str) -> None:
    own, is_set = module.__dict__, True
    try:
        load_global_value(machine, own, name)
    except KeyError:
        is_set = False
    if not is_set:
        raise AttributeError(f"{type(module).__name__!r} object has no attribute {name!r}")
    machine.objects.write_global(own, name, DELETED)


def _like(function: types.FunctionType) -> types.FunctionType:
    """A function to try on what is done to the fields of another."""
    return types.FunctionType(function.__code__, function.__globals__, closure=function.__closure__)


def _check_own(machine: Machine, obj: Any, name: str, raw: Any) -> None:
    """Raise AttributeError if a known object has no such attribute itself: its class's stays."""
    kind, source = type(obj), machine.objects.source_of(obj)
    if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        if kind is types.GeneratorType:
            delattr(obj, name)  # raises: all that a generator has stays
        data_descriptor(machine, obj, kind, name, raw, source)
        return
    if kind is types.FunctionType:
        function_attribute(machine, obj, name)
        return
    value = own_attribute(machine, obj, name, source, shadowed=True)
    if value is MISSING and isinstance(obj, torch.nn.Module):
        value = module_table_attribute(machine, obj, name)
    if value is MISSING:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
