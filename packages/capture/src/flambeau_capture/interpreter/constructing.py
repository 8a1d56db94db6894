"""Calls of classes: how instances are made, by constructors in Python, in C, or of tensors."""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.native_calls import call_native, is_native
from flambeau_capture.interpreter.semantics.native_functions import is_pure, prepare_arguments
from flambeau_capture.interpreter.substitutes import SUBSTITUTES
from flambeau_capture.interpreter.values.classes import lookup, python_method
from flambeau_capture.interpreter.values.subclasses import is_admitted
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.wrapper_subclasses import is_opaque_type, is_wrapper_subclass

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs


def construct(machine: Machine, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """`cls(*args, **kwargs)`: the metaclass's `__call__`, or `type.__call__`."""
    substitute = SUBSTITUTES.get(id(cls))
    if substitute is not None:
        return substitute(machine, args, kwargs)
    library = machine.foreign.of_callable(cls)
    if library is not None:
        found = library.call(cls, args, kwargs)
        if found is not NotImplemented:
            return found
    meta_call = python_method(machine, type(cls), "__call__")
    if meta_call is not None and not _is_member_lookup(machine, cls, args, kwargs):
        return machine.interpret(meta_call, (cls, *args), kwargs)
    return instantiate(machine, cls, args, kwargs)


def _is_member_lookup(machine: Machine, cls: type, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call finds a member of an enumeration that existed before the call."""
    looks_up = issubclass(cls, enum.Enum) and len(args) == 1 and not kwargs
    return looks_up and cls not in machine.classes.made


def instantiate(machine: Machine, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """What `type.__call__` does: `__new__`, then `__init__`."""
    if is_wrapper_subclass(cls):
        return machine.tape.call_function(cls, args, kwargs)
    if issubclass(cls, torch.Tensor) and not _makes_itself(machine, cls):
        raise GraphBreak("tensor-subclass", f"a {cls.__name__} is made")
    if type(lookup(machine, cls, "__del__")) is types.FunctionType:
        raise GraphBreak("side-effect", f"a {cls.__name__}, which has a __del__, is made")
    new, init = lookup(machine, cls, "__new__"), lookup(machine, cls, "__init__")
    maker = new.__func__ if isinstance(new, staticmethod) else new
    written_in_c = types.FunctionType not in (type(maker), type(init))
    if written_in_c and (cls is type or not issubclass(cls, type)):
        return _construct_native(machine, cls, args, kwargs)
    if type(maker) is types.FunctionType:
        made = machine.call(maker, (cls, *args), kwargs)
    else:
        made = new_instance(machine, cls, args, kwargs)
    if type(init) is types.FunctionType:
        if issubclass(type(made), cls) or (
            isinstance(made, torch.Tensor) and machine.tape.tensor_instance_of(made, cls)
        ):
            result = machine.call(init, (made, *args), kwargs)
            if result is not None:
                raise TypeError(f"__init__() should return None, not {type(result).__name__!r}")
    elif issubclass(type(made), cls) and init is not object.__init__:
        machine.call(init, (made, *args), kwargs)
    return made


def _makes_itself(machine: Machine, cls: type) -> bool:
    """Whether a tensor subclass has a constructor in Python, which can be followed."""
    new = lookup(machine, cls, "__new__")
    return is_admitted(cls) and isinstance(new, (staticmethod, types.FunctionType))


def new_instance(machine: Machine, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """A bare instance of a class whose `__new__` is C and whose `__init__` is Python."""
    if issubclass(cls, BaseException):
        return cls.__new__(cls, *args, **kwargs)
    if cls.__new__ is object.__new__:
        return object.__new__(cls, *args, **kwargs)
    if issubclass(cls, type):
        return machine.call(type.__new__, (cls, *args), kwargs)
    if cls.__new__ in (dict.__new__, list.__new__, set.__new__):
        return cls.__new__(cls)
    base = _native_maker(cls)
    if base is None:
        raise GraphBreak("unknown-c-function", f"{cls.__qualname__}.__new__ is written in C")
    if not is_pure(base):
        return call_native(machine, base.__new__, (cls, *args), kwargs)
    return cls.__new__(cls, *args, **kwargs)


def _native_maker(cls: type) -> Any:
    """The C type whose `__new__` makes the instances of a class, if that may run at capture."""
    base = getattr(cls.__new__, "__self__", None)
    known = isinstance(base, type) and (is_pure(base) or is_native(base))
    return base if known and cls.__new__ is base.__new__ else None


def _construct_native(machine: Machine, cls: type, args: Args, kwargs: Kwargs) -> Any:
    maker = _native_maker(cls)
    if maker is not None and not is_pure(maker):
        return call_native(machine, cls, args, kwargs)
    if not (
        is_pure(cls)
        or issubclass(cls, (BaseException, enum.Enum))
        or is_opaque_type(cls)
        or cls.__new__ is object.__new__
        or maker is not None
    ):
        raise GraphBreak("unknown-c-function", f"a {cls.__module__}.{cls.__qualname__} is made")
    args, kwargs = prepare_arguments(machine, cls, args, kwargs)
    made = cls(*args, **kwargs)
    if cls.__module__ == "typing" and getattr(made, "__module__", None) == __name__:
        assert machine.frame is not None
        made.__module__ = machine.frame.globals.get("__name__", "__main__")
    return made
