"""Attributes as Python defines them: how they are read, and where writes are kept.

A read follows `object.__getattribute__`: data descriptors of the class, the instance's own dict,
other class attributes, `__getattr__`. Reads of known objects are guarded; objects made in the frame
are read natively. Descriptors written in Python are interpreted.

A write to an object that existed before the call stays in the object's pending writes until exit.
If the frame holds a tracked copy of the object's `__dict__`, or of a module's table
(`_parameters`), the copy shows the write too. A write to the tracked copy itself is the copy's own
change.
"""

from __future__ import annotations

import enum
import functools
import threading
import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from flambeau_capture.graphs.host_random import GENERATOR_STATE, is_host_generator_type
from flambeau_capture.interpreter import foreign_types
from flambeau_capture.interpreter.semantics.drawn_numbers import is_of_program
from flambeau_capture.interpreter.torch_calls.tensors import load_tensor_attribute
from flambeau_capture.interpreter.tracebacks import is_made, own_traceback
from flambeau_capture.interpreter.values.classes import (
    IDENTITY_TYPES,
    MISSING,
    SCALARS,
    SYMBOLIC_NUMBERS,
    TORCH_CONSTANTS,
    Proxy,
    class_attribute,
    is_written,
    lookup,
    of_bases,
    python_method,
)
from flambeau_capture.interpreter.values.lazy_values import PARTIAL_READS
from flambeau_capture.interpreter.values.objects import C_METHODS, DELETED
from flambeau_capture.interpreter.values.program_functions import function_part, function_source
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import (
    HEAP_TYPE,
    MODULE_TABLES,
    Attribute,
    Constant,
    DictEntry,
    Global,
    GlobalsDict,
    InstanceDict,
    Source,
    TypeAttribute,
    module_table_entry,
)
from flambeau_capture.trusted import is_trusted
from flambeau_prims.concrete_sizes import concrete

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine


_NATIVE_VALUES: frozenset[type] = frozenset({
    int, float, complex, str, bytes, bool, type(None), list, dict, tuple, set, frozenset, range,
    slice, torch.Size, torch.dtype, torch.device, type({}.keys()), type({}.values()),
    type({}.items()), bytearray, types.CodeType, types.GenericAlias, torch.finfo, torch.iinfo,
    torch.layout, torch.memory_format,
})  # fmt: skip
"""Types whose attributes are native and depend on nothing but the value."""

_NATIVE_OBJECTS = IDENTITY_TYPES - {types.FunctionType, types.ModuleType}
"""Objects that are guarded by identity: their attributes are theirs for good."""

_TRACEBACK_LINKS = ("tb_next", "tb_lineno", "tb_lasti")
"""What a traceback of interpreted frames shows as eager's does: all but its frames."""
_MODULE_GETATTR = torch.nn.Module.__getattr__
_instance_dict = object.__getattribute__


def load_attr(machine: Machine, obj: Any, name: str) -> Any:
    """`obj.name`, or AttributeError."""
    found = machine.objects.attribute_cache.get((id(obj), name), MISSING)
    if found is not MISSING:
        return found
    kind = type(obj)
    read = _READS.get(kind) or of_bases(_READS_OF_SUBTYPES, kind, _instance_attribute)
    try:
        return read(machine, obj, name)
    except AttributeError as error:
        if error.name is None and error.obj is None:  # as CPython completes an error of a getter
            error.name, error.obj = name, obj
        raise


def load_value(machine: Machine, obj: Any, name: str) -> Any:
    """`obj.name` as an object to keep: a method of a C type as its own kind of bound method."""
    found = load_attr(machine, obj, name)
    if type(found) is not types.MethodType or type(found.__func__) not in C_METHODS:
        return found
    if isinstance(found.__self__, (torch.Tensor, Proxy)):
        return found
    return found.__func__.__get__(found.__self__, type(found.__self__))


def _native_attribute(machine: Machine, obj: Any, name: str) -> Any:
    return getattr(obj, name)


def _attribute_of_number(machine: Machine, number: Any, name: str) -> Any:
    if name == "__class__":
        return SYMBOLIC_NUMBERS[type(number)]
    return getattr(concrete(number), name)


def _method_attribute(machine: Machine, method: types.MethodType, name: str) -> Any:
    if name in ("__func__", "__self__"):
        return getattr(method, name)
    function, receiver = method.__func__, method.__self__
    if name == "__qualname__" and isinstance(receiver, torch.Tensor):
        if type(function) is not types.FunctionType:  # written in C: it names the object's class
            return f"{machine.tape.real_type(receiver).__qualname__}.{method.__name__}"
    return load_attr(machine, function, name)


def _attribute_of_thread(machine: Machine, obj: Any, name: str) -> NoReturn:
    raise break_of_thread(type(obj), name)


def _instance_attribute(machine: Machine, obj: Any, name: str) -> Any:
    kind = type(obj)
    if foreign_types.is_value(kind):
        return getattr(obj, name)
    if name in GENERATOR_STATE and is_host_generator_type(kind):
        raise GraphBreak("host-random", f"{name} of a random generator is read")
    getter = python_method(machine, kind, "__getattribute__")
    if getter is None:
        error = None
        try:
            found = generic_load(machine, obj, name)
        except AttributeError as raised:  # by a descriptor: `__getattr__` is asked, too
            if lookup(machine, kind, "__getattr__") is MISSING:
                raise
            found, error = MISSING, raised
        if found is not MISSING:
            return found
    else:
        try:
            return machine.call(getter, (obj, name), {})
        except AttributeError as raised:
            error = raised
    return _call_getattr(machine, obj, kind, name, error)


def _call_getattr(
    machine: Machine, obj: Any, kind: type, name: str, error: AttributeError | None
) -> Any:
    fallback = python_method(machine, kind, "__getattr__")
    if fallback is _MODULE_GETATTR:
        found = module_table_attribute(machine, obj, name)
        if found is not MISSING:
            return found
        error = None
    elif fallback is not None:
        return machine.call(fallback, (obj, name), {})
    if (
        not is_trusted(kind.__module__)
        and kind not in machine.classes.made
        and lookup(machine, kind, name) is MISSING
    ):
        machine.guard("IS", TypeAttribute.of(kind, name), MISSING)
    raise error or AttributeError(
        f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=obj
    )


def has_attr(machine: Machine, obj: Any, name: str) -> bool:
    """`hasattr(obj, name)`."""
    try:
        load_attr(machine, obj, name)
    except AttributeError:
        return False
    return True


def generic_load(machine: Machine, obj: Any, name: str) -> Any:
    """What `object.__getattribute__` finds, or MISSING."""
    kind = type(obj)
    raw = lookup(machine, kind, name)
    if name == "__dict__":
        return instance_dict(machine, obj)
    if kind is types.TracebackType and not (
        name in _TRACEBACK_LINKS and not machine.objects.is_known(obj) and is_made(obj)
    ):
        raise GraphBreak("traceback", f"{name} of a traceback is read")
    if name == "__traceback__" and isinstance(obj, BaseException):
        if not machine.objects.is_known(obj):
            return own_traceback(obj)
        if machine.frame is not None and not machine.functions.is_library(machine.frame.globals):
            raise GraphBreak("traceback", f"__traceback__ of a {kind.__name__} is read")
    if name == "__class__" and isinstance(raw, types.GetSetDescriptorType):
        return kind
    source = machine.objects.source_of(obj) if machine.objects.is_known(obj) else None
    if raw is not MISSING:
        found = data_descriptor(machine, obj, kind, name, raw, source)
        if found is not MISSING:
            return found
    found = own_attribute(machine, obj, name, source, shadowed=raw is not MISSING)
    if found is not MISSING or raw is MISSING:
        return found
    return _bind(machine, raw, obj, kind, name)


def instance_dict(machine: Machine, obj: Any) -> Any:
    """`obj.__dict__` (a tracked copy of it for a known object)."""
    objects = machine.objects
    real = _instance_dict(obj, "__dict__")
    if not objects.is_known(obj):
        return real
    source = objects.source_of(obj)
    assert source is not None
    seen = objects.tracked_copy_of.get(id(real))
    if seen is not None and not isinstance(obj, torch.nn.Module):
        return seen.copy
    machine.objects.loading = None  # attributes that the frame has written must be seen in it
    copy = objects.wrap(real, InstanceDict(source))
    if seen is None:
        for key in [key for key in objects.attribute_cache if key[0] == id(obj)]:
            del objects.attribute_cache[key]  # from now on attributes are read from the copy
    show_pending_in_tables(machine, obj)
    for name, value in (objects.pending_writes_of(obj) or {}).items():
        if table_for(machine, obj, name, value) is None:
            update_tracked_dict(machine, obj, name, value)
    return copy


def data_descriptor(
    machine: Machine, obj: Any, kind: type, name: str, raw: Any, source: Source | None
) -> Any:
    """The value a data descriptor of the class gives, or MISSING where `raw` is none."""
    what = type(raw)
    if what is property:
        if raw.fget is None:
            return raw.__get__(obj, kind)  # raises
        return machine.call(raw.fget, (obj,), {})
    if what is types.MemberDescriptorType or what is types.GetSetDescriptorType:
        pending = machine.objects.pending_writes_of(obj)
        if pending is not None and name in pending:
            if pending[name] is DELETED:
                raise AttributeError(name)
            return pending[name]
        value = raw.__get__(obj, kind)
        return value if source is None else machine.objects.wrap(value, Attribute(source, name))
    if what is types.FunctionType:
        return MISSING
    if python_method(machine, what, "__set__") is not None:
        getter = python_method(machine, what, "__get__")
        if getter is not None:
            return machine.call(getter, (raw, obj, kind), {})
    return MISSING


def own_attribute(
    machine: Machine, obj: Any, name: str, source: Source | None, *, shadowed: bool
) -> Any:
    """The attribute in the instance dict, or MISSING; guarded for a known object."""
    try:
        own = _instance_dict(obj, "__dict__")
    except AttributeError:
        if not type(obj).__dictoffset__:
            return MISSING
        found = getattr(obj, name, MISSING)  # of a C type that shows nobody its dict: a TypeVar
        if source is None or found is MISSING:
            return found
        return machine.objects.wrap(found, Attribute(source, name))
    if source is None:
        return own.get(name, MISSING)
    objects = machine.objects
    tracked = objects.tracked_copy_of.get(id(own))
    if tracked is not None and not isinstance(obj, torch.nn.Module):
        return tracked.copy.get(name, MISSING)
    pending = objects.pending_writes_of(obj)
    if pending is not None and name in pending:
        value = pending[name]
        return MISSING if value is DELETED else value
    if tracked is not None:
        return tracked.copy.get(name, MISSING)
    base = InstanceDict(source)
    if name not in own:
        if shadowed or not isinstance(obj, torch.nn.Module):
            machine.guard("ABSENT", base, name)
        return MISSING
    if name in MODULE_TABLES:
        machine.objects.loading = None  # what was set as attributes must be seen in it
    value = objects.wrap(own[name], DictEntry(base, name))
    if pending is not None and name in MODULE_TABLES:
        show_pending_in_tables(machine, obj)
    if (
        type(value) not in PARTIAL_READS
        and python_method(machine, type(obj), "__getattribute__") is None
    ):
        objects.attribute_cache[(id(obj), name)] = value
    return value


def module_table_attribute(machine: Machine, obj: Any, name: str) -> Any:
    """A parameter, buffer or submodule (`nn.Module.__getattr__`), or MISSING."""
    objects = machine.objects
    own = _instance_dict(obj, "__dict__")
    source = objects.source_of(obj) if objects.is_known(obj) else None
    for table_name in MODULE_TABLES:
        table = own.get(table_name)
        if table is None:
            continue
        tracked = objects.tracked_copy_of.get(id(table))
        if tracked is not None:
            table = tracked.copy
        if name in table:
            if source is None or tracked is not None:
                return table[name]
            value = objects.wrap(table[name], module_table_entry(source, table_name, name))
            objects.attribute_cache[(id(obj), name)] = value
            return value
    if source is not None:
        base = InstanceDict(source)
        machine.guard("ABSENT", base, name)
        for table_name in MODULE_TABLES:
            machine.guard("ABSENT", DictEntry(base, table_name), name)
    return MISSING


def _bind(machine: Machine, raw: Any, obj: Any, kind: type, name: str) -> Any:
    """A class attribute that is no data descriptor, read through an instance."""
    what = type(raw)
    if what is types.FunctionType or what in C_METHODS:
        return types.MethodType(raw, obj)
    if what is functools.cached_property:
        value = machine.call(raw.func, (obj,), {})
        store_own_attribute(machine, obj, raw.attrname, value)
        return value
    found = _bind_descriptor(machine, raw, obj, kind)
    if found is not MISSING:
        return found
    if is_written(machine, kind, name):
        return raw
    return machine.objects.wrap(raw, class_attribute(machine, kind, name))


def _bind_descriptor(machine: Machine, raw: Any, obj: Any, kind: type) -> Any:
    """`raw.__get__(obj, kind)`, interpreted if it is Python; MISSING if `raw` has none."""
    what = type(raw)
    if what is staticmethod:
        return raw.__func__
    if what is classmethod:
        return types.MethodType(raw.__func__, kind)
    getter = python_method(machine, what, "__get__")
    if getter is not None:
        return machine.call(getter, (raw, obj, kind), {})
    return raw.__get__(obj, kind) if hasattr(what, "__get__") else MISSING


def function_attribute(machine: Machine, function: types.FunctionType, name: str) -> Any:
    """`function.name` of a Python function."""
    pending = machine.objects.pending_writes_of(function)
    if pending is not None and name in pending:
        return pending[name]
    own = function.__dict__
    if name in own and id(function) not in machine.functions.made:
        value = own[name]
        if is_trusted(function.__module__) and type(value) in IDENTITY_TYPES:
            return value
        base = InstanceDict(function_source(machine, function))
        return machine.objects.wrap(value, DictEntry(base, name))
    if (
        lookup(machine, types.FunctionType, name) is MISSING
        and id(function) not in machine.functions.made
    ):
        machine.guard("ABSENT", InstanceDict(function_source(machine, function)), name)
    return function_part(machine, function, name)


def _class_attribute(machine: Machine, cls: type, name: str) -> Any:
    """`cls.name`, through the metaclass's `__getattribute__` and `__getattr__` if it has them."""
    meta = type(cls)
    if meta is type or issubclass(meta, enum.EnumMeta):
        return load_class_attribute(machine, cls, name)
    getter = python_method(machine, meta, "__getattribute__")
    try:
        if getter is not None:
            return machine.call(getter, (cls, name), {})
        return load_class_attribute(machine, cls, name)
    except AttributeError:
        fallback = python_method(machine, meta, "__getattr__")
        if fallback is None:
            raise
        return machine.call(fallback, (cls, name), {})


_OF_METACLASS = (
    "__dict__", "__mro__", "__name__", "__class__", "__bases__", "__module__", "__qualname__",
    "__doc__",
)  # fmt: skip


def _is_of_metaclass(meta: type, raw: Any) -> bool:
    """Whether a class, which is a metaclass, shows what a data descriptor in C gives for it."""
    kinds = (types.GetSetDescriptorType, types.MemberDescriptorType)
    return type(raw) in kinds and issubclass(meta, raw.__objclass__)


def load_class_attribute(machine: Machine, cls: type, name: str) -> Any:
    """What `type.__getattribute__` finds."""
    meta = type(cls)
    if issubclass(meta, enum.EnumMeta):
        return getattr(cls, name)
    raw = lookup(machine, cls, name)
    if raw is MISSING or name in _OF_METACLASS or _is_of_metaclass(meta, raw):
        method = python_method(machine, meta, name)
        if method is not None:
            return types.MethodType(method, cls)
        return getattr(cls, name)
    found = raw if type(raw) is types.FunctionType else _bind_descriptor(machine, raw, None, cls)
    if found is not MISSING:
        return found
    defined = is_trusted(cls.__module__) and type(raw) in SCALARS
    if is_written(machine, cls, name) or (defined and not _may_count(machine, raw)):
        return raw
    return machine.objects.wrap(raw, class_attribute(machine, cls, name))


def _may_count(machine: Machine, raw: Any) -> bool:
    """Whether code of the program reads what may be a counter, and no definition."""
    return type(raw) is int and is_of_program(machine.frame)


def _module_attribute(machine: Machine, module: Any, name: str) -> Any:
    kind = type(module)
    getter = python_method(machine, kind, "__getattribute__")
    if getter is None:
        return load_module_attribute(machine, module, name)
    try:
        return machine.call(getter, (module, name), {})
    except AttributeError as raised:
        return _call_getattr(machine, module, kind, name, raised)


def load_module_attribute(machine: Machine, module: Any, name: str) -> Any:
    """What `ModuleType.__getattribute__` finds."""
    kind, own = type(module), _instance_dict(module, "__dict__")
    if type(raw := lookup(machine, kind, name)) is property and not is_trusted(kind.__module__):
        return data_descriptor(machine, module, kind, name, raw, None)
    try:
        return load_global_value(machine, own, name)
    except KeyError:
        pass
    if machine.objects.written_global(own, name) is DELETED:
        if "__getattr__" in own or raw is not MISSING:
            raise GraphBreak("unsupported-mutation", f"{name!r} of {module!r} was deleted")
        raise AttributeError(f"module {own.get('__name__')!r} has no attribute {name!r}")
    if name == "__dict__":
        machine.objects.loading = None  # globals that the frame has written must be seen in it
    try:
        value = getattr(module, name)  # a lazy module, or a property of torch.backends
    except AttributeError:
        note_absent_global(machine, own, name)
        raise
    if isinstance(value, (type, types.ModuleType)) or type(value) in IDENTITY_TYPES:
        machine.rely_on(own, name)
        return value
    if module is torch.backends.cudnn and "cudnn_flags" in machine.torch_state:
        return value  # guarded with all others, as they were when the frame set the first
    return machine.objects.wrap(value, Attribute(Constant(module), name))


def note_absent_global(machine: Machine, module_globals: dict[str, Any], name: str) -> None:
    """Guard that a module does not define a name; in a trusted one, rely on it."""
    module = module_globals.get("__name__")
    if is_trusted(module):
        machine.rely_on(module_globals, name)
    elif machine.objects.written_global(module_globals, name) is MISSING:
        source = GlobalsDict(module_globals, str(module))
        machine.guard("ABSENT", source, name)


def load_global_value(machine: Machine, module_globals: dict[str, Any], name: str) -> Any:
    """A name in a module's globals (KeyError where there is none)."""
    if id(module_globals) in machine.objects.namespaces:
        return module_globals[name]
    key = (id(module_globals), name)
    cache = machine.objects.global_cache
    found = cache.get(key, MISSING)
    if found is not MISSING:
        return found
    written = machine.objects.written_global(module_globals, name)
    tracked = machine.objects.tracked_copy_of.get(id(module_globals))
    if written is DELETED:
        raise KeyError(name)
    if written is not MISSING:
        return written
    if tracked is not None:
        return tracked.copy[name]
    value = module_globals[name]
    if is_trusted(module_globals.get("__name__")) and _is_definition(value):
        machine.rely_on(module_globals, name)
        found = value
    elif type(value) is dict and is_trusted(module_globals.get("__name__")):
        found = machine.objects.read_lazily(value, Global(module_globals, name))
    else:
        found = machine.objects.wrap(value, Global(module_globals, name))
    if type(found) not in PARTIAL_READS:
        cache[key] = found
    return found


def _is_definition(value: Any) -> bool:
    """Whether a global of torch or the standard library is defined once, and not assigned state."""
    kind = type(value)
    return (
        kind in IDENTITY_TYPES
        or kind in TORCH_CONSTANTS
        or kind is str
        or isinstance(value, (type, types.ModuleType))
        or foreign_types.is_value(kind)
    )


def _super_attribute(machine: Machine, obj: super, name: str) -> Any:
    start, bound, bound_type = obj.__thisclass__, obj.__self__, obj.__self_class__  # type: ignore[attr-defined]
    if name == "__class__":
        return super
    mro = bound_type.__mro__
    for cls in mro[mro.index(start) + 1 :]:
        raw = cls.__dict__.get(name, MISSING)
        if raw is MISSING:
            continue
        what = type(raw)
        if (
            what is types.FunctionType
            and not is_trusted(cls.__module__)
            and cls not in machine.classes.made
        ):
            machine.guard("IS", TypeAttribute.of(cls, name), raw)
        elif cls.__flags__ & HEAP_TYPE and cls not in machine.classes.made:
            machine.rely_on(cls, name)
        if what is staticmethod:
            return raw.__func__
        if what is classmethod:
            return types.MethodType(raw.__func__, bound_type)
        if bound is bound_type and isinstance(bound, type):  # super() in a classmethod or __new__
            return raw if what is types.FunctionType else getattr(obj, name)
        if what is property:
            return machine.call(raw.fget, (bound,), {})
        return _bind(machine, raw, bound, bound_type, name)
    raise AttributeError(f"'super' object has no attribute {name!r}")


def break_of_thread(kind: type, name: str) -> GraphBreak:
    """The break at an attribute of a threading.local: each thread has its own, and no source."""
    return GraphBreak(
        "unsupported-input", f"attribute {name!r} of a {kind.__qualname__} of this thread"
    )


_READS: dict[type, Callable[[Machine, Any, str], Any]] = {
    **dict.fromkeys(_NATIVE_VALUES | _NATIVE_OBJECTS, _native_attribute),
    **dict.fromkeys(SYMBOLIC_NUMBERS, _attribute_of_number),
    types.FunctionType: function_attribute,
    types.MethodType: _method_attribute,
    super: _super_attribute,
}
"""How attributes are read, by an object's exact type."""

_READS_OF_SUBTYPES: dict[type, Callable[[Machine, Any, str], Any]] = {
    Proxy: lambda machine, proxy, name: proxy.seen_attribute(name),
    torch.Tensor: load_tensor_attribute,
    type: _class_attribute,
    types.ModuleType: _module_attribute,
    threading.local: _attribute_of_thread,
}
"""By a base of the object's type; what has none of them is read by `_instance_attribute`."""


# ---------------------------------------------------------------- pending writes


def store_own_attribute(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """Set a slot or an entry of the instance dict, in the pending writes of a known object."""
    objects = machine.objects
    if isinstance(obj, types.ModuleType):
        objects.write_global(_instance_dict(obj, "__dict__"), name, value)
    elif objects.is_known(obj) or (
        type(obj) is types.FunctionType and id(obj) not in machine.functions.made
    ):
        if not objects.is_known(obj):
            objects.register(obj, function_source(machine, obj))
        _check_writable(obj, name)
        if (objects.pending_writes_of(obj) or {}).get(name) is DELETED:
            objects.set_anew.add((id(obj), name))
        objects.add_pending_write(obj, name, value)
        machine.objects.note_attribute_write(obj, name, raw=True)
        update_tracked_dict(machine, obj, name, value)
    else:
        object.__setattr__(obj, name, value)


def update_tracked_dict(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """Keep a tracked copy of `obj.__dict__` in step with the pending writes."""
    if isinstance(lookup(machine, type(obj), name), types.MemberDescriptorType):
        return  # a slot
    own = getattr(obj, "__dict__", None)
    machine.objects.show(own, name, value)


def _check_writable(obj: Any, name: str) -> None:
    """Raise eager's AttributeError for an object that cannot take the attribute."""
    kind = type(obj)
    if not hasattr(obj, "__dict__") and not isinstance(
        getattr(kind, name, None), types.MemberDescriptorType
    ):
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")


def show_pending_in_tables(machine: Machine, obj: Any) -> None:
    """Show attributes that were set in the tracked copies of a module's tables."""
    own = _instance_dict(obj, "__dict__")
    for name, value in (machine.objects.pending_writes_of(obj) or {}).items():
        table_name = table_for(machine, obj, name, value)
        machine.objects.show(own.get(table_name), name, value)


def table_for(machine: Machine, obj: Any, name: str, value: Any) -> str | None:
    """The table that `nn.Module.__setattr__` puts a value in; None for the instance dict."""
    if not isinstance(obj, torch.nn.Module):
        return None
    own = _instance_dict(obj, "__dict__")
    kind = machine.tape.real_type(value) if isinstance(value, torch.Tensor) else type(value)
    if issubclass(kind, torch.nn.Parameter):
        return "_parameters"
    if issubclass(kind, torch.nn.Module):
        return "_modules"
    for table_name in MODULE_TABLES:
        table = own.get(table_name)
        if table is not None and (name in table or name in _tracked(machine, table)):
            return table_name
    return None


def _tracked(machine: Machine, table: Any) -> Any:
    """What the frame has made of a table of a module."""
    tracked = machine.objects.tracked_copy_of.get(id(table))
    return () if tracked is None else tracked.copy
