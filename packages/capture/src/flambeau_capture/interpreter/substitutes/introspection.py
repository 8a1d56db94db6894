"""Types, attributes, namespaces, frames and exceptions in flight, as the program sees them."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.frame import UNBOUND, whole_local
from flambeau_capture.interpreter.semantics import (
    attribute_writes,
    attributes,
    native_functions,
    operators,
)
from flambeau_capture.interpreter.semantics.attributes import load_global_value
from flambeau_capture.interpreter.semantics.items import native_iterable
from flambeau_capture.interpreter.substitute_registry import (
    forwarding,
    natively,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.interpreter.substitutes.class_making import new_class
from flambeau_capture.interpreter.tracebacks import own_traceback
from flambeau_capture.interpreter.values import program_functions
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    SYMBOLIC_NUMBERS,
    Proxy,
    python_method,
)
from flambeau_capture.interpreter.values.lifetimes import refuse_finalizing
from flambeau_capture.interpreter.values.numbers import concrete_key
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf, Constant, GlobalsDict
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.machine import Frame, Machine


for _function, _substitute in (
    (isinstance, operators.instance_of),
    (hasattr, attributes.has_attr),
    (setattr, attribute_writes.store_attr),
    (delattr, attribute_writes.delete_attr),
    (object.__setattr__, attribute_writes.generic_store),
    (object.__delattr__, attribute_writes.generic_delete),
):
    substitute_for(_function)(forwarding(_substitute))


@substitute_for(type)
def _type(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 3:
        return _call_type(machine, args, kwargs)
    if len(args) != 1 or kwargs:
        return type(*args, **kwargs)  # which raises
    return type_of(machine, args[0])


def type_of(machine: Machine, obj: Any) -> Any:
    """`type(obj)`, as the program sees it."""
    if isinstance(obj, torch.Tensor):
        return machine.tape.real_type(obj)
    kind = type(obj)
    if issubclass(kind, Proxy):
        is_callable = kind is native_functions.InterpretedCallable
        return obj.seen_type() or (types.FunctionType if is_callable else types.GeneratorType)
    return SYMBOLIC_NUMBERS.get(kind, kind)


def _call_type(machine: Machine, args: Any, kwargs: Any) -> Any:
    """`type(name, bases, namespace)`, whose bases may have a metaclass."""
    made = new_class(machine, (type, *args), kwargs)
    init = python_method(machine, type(made), "__init__") if isinstance(made, type) else None
    if init is not None:
        machine.call(init, (made, *args), kwargs)
    return made


@substitute_for(getattr, unpacked=True)
def _getattr(machine: Machine, obj: Any, name: Any, *default: Any) -> Any:
    try:
        return attributes.load_value(machine, obj, name)
    except AttributeError:
        if not default:
            raise
        return default[0]


@substitute_for(object.__getattribute__, unpacked=True)
def _object_getattribute(machine: Machine, obj: Any, name: Any) -> Any:
    found = attributes.generic_load(machine, obj, name)
    if found is MISSING:
        raise AttributeError(
            f"{type(obj).__name__!r} object has no attribute {name!r}", name=name, obj=obj
        )
    return found


@substitute_for(types.ModuleType.__getattribute__, unpacked=True)
def _module_getattribute(machine: Machine, module: Any, name: Any) -> Any:
    return attributes.load_module_attribute(machine, module, name)


@substitute_for(torch.nn.Module.__getattr__, unpacked=True)
def _module_getattr(machine: Machine, obj: Any, name: Any) -> Any:
    found = attributes.module_table_attribute(machine, obj, name)
    if found is MISSING:
        raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}")
    return found


@substitute_for(torch.nn.Module.__setattr__)
def _module_setattr(machine: Machine, args: Any, kwargs: Any) -> None:
    obj, name, value = args
    if machine.objects.is_known(obj):
        attribute_writes.store_module_attribute(machine, obj, name, value)
    else:
        machine.interpret(torch.nn.Module.__setattr__, args, kwargs)


@substitute_for(vars)
def _vars(machine: Machine, args: Any, kwargs: Any) -> Any:
    if args:
        return attributes.load_attr(machine, args[0], "__dict__")
    return _locals(machine, args, kwargs)


@substitute_for(super)
def _super(machine: Machine, args: Any, kwargs: Any) -> Any:
    if args:
        return super(*args)
    frame = machine.frame
    assert frame is not None
    names = frame.code.local_names
    if not frame.code.argcount:
        raise RuntimeError("super(): no arguments")
    if "__class__" not in names:
        raise RuntimeError("super(): __class__ cell not found")
    cls = frame.locals[names.index("__class__")].cell_contents
    first = whole_local(frame, 0)
    return super(
        cls, first.cell_contents if names[0] in frame.function.__code__.co_cellvars else first
    )


@substitute_for(dir)
def _dir(machine: Machine, args: Any, kwargs: Any) -> list[str]:
    if not args:
        return sorted(_locals(machine, args, kwargs))
    (obj,) = args
    method = python_method(machine, type(obj), "__dir__")
    if method is not None and not isinstance(obj, (type, torch.nn.Module)):
        return sorted(native_iterable(machine, machine.call(method, (obj,), {})))
    if machine.objects.is_known(obj) and not isinstance(obj, (type, types.ModuleType)):
        attributes.instance_dict(machine, obj)  # guards which attributes there are
        if machine.objects.pending_writes_of(obj) is not None:
            raise GraphBreak("unknown-c-function", "dir() of an object that the frame has changed")
    named = obj if isinstance(obj, (type, types.ModuleType)) else type(obj)
    module = named.__module__ if isinstance(named, type) else vars(named).get("__name__")
    if not is_trusted(module):
        source = machine.objects.source_of(named) or Constant(named)
        machine.guard("EQUALS", CallOf(names_of, (source,)), names_of(named))
    return dir(obj)


def names_of(obj: Any) -> tuple[str, ...]:
    """The names that a class or module defines."""
    return tuple(dir(obj))


@substitute_for(types.FunctionType.__get__, unpacked=True)
def _bind_function(machine: Machine, function: Any, instance: Any, *_: Any) -> Any:
    return function if instance is None else types.MethodType(function, instance)


@substitute_for(property.__get__, unpacked=True)
def _property_get(machine: Machine, made: Any, instance: Any, *_: Any) -> Any:
    return made if instance is None else machine.call(made.fget, (instance,), {})


@substitute_for(property.__set__, unpacked=True)
def _property_set(machine: Machine, made: Any, instance: Any, value: Any) -> None:
    if made.fset is None:
        property.__set__(made, instance, value)
    machine.call(made.fset, (instance, value), {})


@substitute_for(callable)
def _callable(machine: Machine, args: Any, kwargs: Any) -> bool:
    return callable(args[0]) and not isinstance(args[0], torch.Tensor)


def _note_address(machine: Machine) -> None:
    """Note that the program has seen an address: libraries only tell objects apart by it."""
    if machine.frame is None or not machine.functions.is_library(machine.frame.globals):
        machine.of_the_process = "an address"


@substitute_for(id)
def _id(machine: Machine, args: Any, kwargs: Any) -> int:
    _note_address(machine)
    program_functions.address_read(machine, args[0])
    return id(program_functions.real_object(machine, args[0]))


@substitute_for(hash)
def _hash(machine: Machine, args: Any, kwargs: Any) -> int:
    kind = type(args[0])
    method = python_method(machine, kind, "__hash__")
    if isinstance(args[0], torch.Tensor) and method in (None, torch.Tensor.__hash__):
        return _id(machine, args, kwargs)
    if kind.__hash__ is object.__hash__:
        _note_address(machine)
        program_functions.address_read(machine, args[0])
    elif kind is not int:
        machine.of_the_process = "a hash"
    return hash(concrete_key(args[0])) if method is None else machine.call(method, args, {})


@substitute_for(sys.getrecursionlimit, unpacked=True)
def _recursion_limit(machine: Machine) -> int:
    limit = sys.getrecursionlimit()
    machine.guard("EQUALS", CallOf(sys.getrecursionlimit, ()), limit)
    return limit


@substitute_for(globals)
def _globals(machine: Machine, args: Any, kwargs: Any) -> Any:
    assert machine.frame is not None
    return globals_of(machine.frame)


def globals_of(frame: Frame) -> Any:
    """The namespace of a frame's module, read entry by entry."""
    name = frame.globals.get("__name__", "")
    frame.machine.objects.register(frame.globals, GlobalsDict(frame.globals, name))
    return frame.globals


@substitute_for(locals)
def _locals(machine: Machine, args: Any, kwargs: Any) -> Any:
    assert machine.frame is not None
    return locals_of(machine.frame)


def locals_of(frame: Frame) -> Any:
    """What `locals()` gives in a frame."""
    if frame.namespace is not None:
        return frame.namespace
    found = frame.snapshot if frame.snapshot is not None and _ONE_SNAPSHOT else {}
    for slot, name in enumerate(frame.code.local_names):
        value = _variable(frame, slot)
        if value is UNBOUND:
            found.pop(name, None)
        else:
            found[name] = value
    if _ONE_SNAPSHOT:
        frame.snapshot = found
    return found


_ONE_SNAPSHOT = sys.version_info < (3, 13)
"""Whether all calls of `locals()` in a frame give one dict, as before PEP 667."""


def _variable(frame: Frame, slot: int) -> Any:
    """What a local variable or a cell holds, or UNBOUND."""
    value = whole_local(frame, slot)
    if isinstance(value, types.CellType):
        name = frame.code.local_names[slot]
        try:
            return frame.machine.objects.load_cell(value, name, False)
        except (NameError, UnboundLocalError):
            return UNBOUND
    return value


class FrameLocals(Proxy):
    """`f_locals` of an interpreted function from 3.13 on: it shows its variables as they are, and
    sets them (PEP 667).
    """

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def seen_type(self) -> type:
        """The type that the program sees."""
        return type(_own_locals())

    def seen_attribute(self, name: str) -> Any:
        """Its methods; a break for what they leave out."""
        if name == "__class__":
            return self.seen_type()
        if not hasattr(_own_locals(), name):
            kind = self.seen_type().__name__
            message = f"{kind!r} object has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=self)
        if name not in vars(FrameLocals):
            raise GraphBreak("unknown-c-function", f"{name} of the variables of a frame is read")
        return getattr(self, name)

    def __getitem__(self, name: Any) -> Any:
        variables = locals_of(self.frame)
        return variables[name] if name in variables else _own_locals()[name]  # which raises

    def __setitem__(self, name: Any, value: Any) -> None:
        frame = self.frame
        if name not in frame.code.local_names:
            raise GraphBreak("unknown-c-function", "f_locals of a frame is given a new name")
        slot = frame.code.local_names.index(name)
        if isinstance(held := frame.locals[slot], types.CellType):
            frame.machine.objects.store_cell(held, value)
        else:
            refuse_finalizing(frame, slot)
            frame.locals[slot] = value

    def __delitem__(self, name: Any) -> None:
        del _own_locals()[name]  # which raises

    def __len__(self) -> int:
        return len(locals_of(self.frame))

    def __iter__(self) -> Iterator[Any]:
        return iter(locals_of(self.frame))

    def __reversed__(self) -> Iterator[Any]:
        return reversed(locals_of(self.frame))

    def __contains__(self, name: Any) -> bool:
        return name in locals_of(self.frame)

    def keys(self) -> list[Any]:
        """The names, as a list."""
        return list(locals_of(self.frame))

    def values(self) -> list[Any]:
        """The values, as a list."""
        return list(locals_of(self.frame).values())

    def items(self) -> list[tuple[Any, Any]]:
        """The names and their values, as a list."""
        return list(locals_of(self.frame).items())

    def copy(self) -> dict[Any, Any]:
        """The variables as they are now, as a dict."""
        return locals_of(self.frame)

    def get(self, name: Any, default: Any = None) -> Any:
        """The value of a variable, or the default."""
        return locals_of(self.frame).get(name, default)


def _own_locals() -> Any:
    """The variables of this call, which has none."""
    return sys._getframe().f_locals


for _function in native_functions.PYTHON_NATIVE.values():
    substitute_if_new(_function, natively(_function))


if sys.version_info >= (3, 12):

    @substitute_for(sys.exception)
    def _exception(machine: Machine, args: Any, kwargs: Any) -> Any:
        return machine.handling


@substitute_for(sys.exc_info)
def _exc_info(machine: Machine, args: Any, kwargs: Any) -> Any:
    error = machine.handling
    if error is None:
        return None, None, None
    if not machine.objects.is_known(error):
        return type(error), error, own_traceback(error)
    if machine.frame is not None and not machine.functions.is_library(machine.frame.globals):
        raise GraphBreak("traceback", "call of sys.exc_info")
    return type(error), error, error.__traceback__


class FrameView(Proxy):
    """A frame object of an interpreted frame."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def seen_type(self) -> type:
        """The type that the program sees."""
        return types.FrameType

    @staticmethod
    def instance_of(classes: Any) -> bool:
        return issubclass(types.FrameType, classes)

    def seen_attribute(self, name: str) -> Any:
        """What an interpreted frame tells of itself; a break for the rest."""
        frame = self.frame
        match name:
            case "f_globals":
                return globals_of(frame)
            case "f_locals":
                whole = _ONE_SNAPSHOT or frame.namespace is not None
                return locals_of(frame) if whole else FrameLocals(frame)
            case "f_code":
                return frame.function.__code__
            case "f_lineno":
                return frame.code.line(max(frame.ip - 1, 0))
            case "f_back":
                return FrameView(_caller(frame))
        if not hasattr(types.FrameType, name):
            raise AttributeError(f"'frame' object has no attribute {name!r}", name=name, obj=self)
        raise GraphBreak("unknown-c-function", f"{name} of a frame is read")


def _caller(frame: Frame | None) -> Frame:
    if frame is None or frame.parent is None:
        raise GraphBreak("unknown-c-function", "a frame outside the captured call is read")
    return frame.parent


def _frame_at(machine: Machine, depth: int) -> Frame:
    frame = machine.frame
    assert frame is not None
    for _ in range(depth):
        frame = _caller(frame)
    return frame


@substitute_for(sys._getframe)
def _getframe(machine: Machine, args: Any, kwargs: Any) -> Any:
    return FrameView(_frame_at(machine, *args, **kwargs) if args else _frame_at(machine, 0))


if sys.version_info >= (3, 12):

    @substitute_for(sys._getframemodulename)  # type: ignore[attr-defined]
    def _getframemodulename(machine: Machine, args: Any, kwargs: Any) -> Any:
        frame = _frame_at(machine, args[0] if args else kwargs.get("depth", 0))
        try:
            return load_global_value(machine, frame.globals, "__name__")
        except KeyError:
            return None
