"""Arguments that were not looked at yet: a function of the program is given them so, everything else gets what they hold.

def loss(batch): return batch["x"].sum()
loss(batch)                  of `batch` one entry is read, in the frame of `loss`
"""

from __future__ import annotations

import functools
import logging
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.classes import Native, is_trusted, python_method
from flambeau_capture.interpreter.partial_reads import Unread
from flambeau_capture.interpreter.pending_text import PendingText, readable
from flambeau_capture.interpreter.program_functions import is_fixed
from flambeau_capture.interpreter.uses import Use

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_MODULE_CALL = torch.nn.Module.__call__


def settle(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as `function` may take them: Unreads only where they go straight into a local variable."""
    if not any(type(arg) is Unread for arg in (*args, *kwargs.values())):
        return args, kwargs
    if python_method(machine, type(function), "__call__") is _MODULE_CALL:
        return args, kwargs  # call_module settles them for `forward`
    if function is isinstance:
        return tuple(_typed(machine, arg) for arg in args), kwargs
    count, names = _parameters(machine, function)
    whole = machine.objects.whole
    if _takes_text(function):
        whole = functools.partial(_as_text, machine)
    return (
        tuple(arg if at < count else whole(arg) for at, arg in enumerate(args)),
        {name: arg if name in names else whole(arg) for name, arg in kwargs.items()},
    )


def read_texts(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as `function` may take them: texts that can be looked at as they are, where it may look at them."""
    if not any(type(arg) is PendingText for arg in (*args, *kwargs.values())):
        return args, kwargs
    count, names = _parameters(machine, function)
    if count > 0 or names or _takes_text(function):
        return args, kwargs
    return tuple(map(readable, args)), {name: readable(arg) for name, arg in kwargs.items()}


def _takes_text(function: Any) -> bool:
    """Whether a function stores what it is given, or shows it at exit."""
    name = getattr(function, "__name__", "")
    if isinstance(function, (types.MethodDescriptorType, types.BuiltinFunctionType)):
        return name in ("append", "extend", "insert", "print", "join", "format", "isinstance")
    if isinstance(function, type):
        return issubclass(function, (BaseException, str))
    return function is warnings.warn or (
        type(function) is types.MethodType and isinstance(function.__self__, logging.Logger)
    )


def _as_text(machine: Machine, arg: Any) -> Any:
    if type(arg) is not Unread:
        return arg
    return machine.objects.wrap_for(arg.value, arg.origin, Use.TEXT)


def _typed(machine: Machine, arg: Any) -> Any:
    """What stands for an argument whose type alone is asked for."""
    if type(arg) is not Unread:
        return arg
    return machine.objects.wrap_for(arg.value, arg.origin, Use.ENTRY)


def _parameters(machine: Machine, function: Any) -> tuple[int, tuple[str, ...]]:
    """How many positional arguments, and which by name, become locals of a frame that is interpreted."""
    bound = 0
    while type(function) is types.MethodType and not isinstance(function.__self__, Native):
        bound += 1
        function = function.__func__
    if type(function) is not types.FunctionType:
        function = python_method(machine, type(function), "__call__")
        bound += 1
    if (
        type(function) is not types.FunctionType
        or is_trusted(function.__globals__.get("__name__"))
        or is_fixed(machine, function)
    ):
        return 0, ()
    code = function.__code__
    named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return code.co_argcount - bound, named
