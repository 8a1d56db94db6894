"""Copies of objects, and how copy.deepcopy takes instances apart.

The first call of resume functions is here too: it is about references only.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.core import release_arguments
from flambeau_capture.interpreter.semantics import attributes
from flambeau_capture.interpreter.semantics.native_calls import reduce_native
from flambeau_capture.interpreter.substitute_registry import substitute_for, substitute_if_new
from flambeau_capture.interpreter.values.classes import python_method
from flambeau_capture.interpreter.values.objects import new_object
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(copy.copy)
def _copy(machine: Machine, args: Any, kwargs: Any) -> Any:
    (obj,) = args
    kind = type(obj)
    if isinstance(obj, torch.Tensor):
        if machine.tape.real_type(obj) is not torch.Tensor:
            raise GraphBreak("tensor-subclass", "a parameter is copied")
        made = machine.tape.call_method("detach", (obj,))
        return machine.tape.call_method("requires_grad_", (made,)) if obj.requires_grad else made
    method = python_method(machine, kind, "__copy__")
    if method is not None:
        return machine.call(method, (obj,), {})
    if kind in (
        list,
        dict,
        set,
        tuple,
        frozenset,
        str,
        int,
        float,
        bool,
        type(None),
        collections.OrderedDict,
        collections.deque,
    ):
        return copy.copy(
            machine.objects.whole_dict(obj)
            if kind is dict and machine.objects.is_known(obj)
            else obj
        )
    if isinstance(obj, (type, types.FunctionType, types.ModuleType)):
        return obj
    if not _is_its_attributes(machine, kind):
        return machine.interpret(copy.copy, args, kwargs)
    made = new_object(kind)
    made.__dict__.update(attributes.instance_dict(machine, obj))
    return made


_OWN_WAYS = (
    "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__",
    "__getnewargs_ex__", "__getattribute__",
)  # fmt: skip
"""Special methods by which a class says how its instances are taken apart, or put together."""


def _is_its_attributes(machine: Machine, kind: type) -> bool:
    """Whether copying an instance only copies its `__dict__`."""
    return (
        kind.__new__ is object.__new__
        and kind.__dictoffset__ != 0
        and kind not in copyreg.dispatch_table
        and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
        and all(python_method(machine, kind, name) is None for name in _OWN_WAYS)
    )


@substitute_for(copy.deepcopy)
def _deepcopy(machine: Machine, args: Any, kwargs: Any) -> Any:
    """As it is written, but for modules, which are full of parameters."""
    if isinstance(args[0], torch.nn.Module):
        raise GraphBreak("parameter-made", f"a {type(args[0]).__qualname__} is copied")
    return machine.interpret(copy.deepcopy, args, kwargs)


@substitute_for(torch.nn.Parameter, torch.nn.Parameter.__deepcopy__)
def _parameter(machine: Machine, args: Any, kwargs: Any) -> Any:
    raise GraphBreak("parameter-made", "an nn.Parameter is made")


@substitute_for(torch.Tensor.__deepcopy__)
def _tensor_deepcopy(machine: Machine, args: Any, kwargs: Any) -> Any:
    """A leaf with the same contents, as eager makes it."""
    tensor = args[0]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the "
            "deepcopy protocol at the moment"
        )
    if machine.tape.real_type(tensor) is not torch.Tensor:
        raise GraphBreak("parameter-made", "an nn.Parameter is copied")
    made = machine.tape.call_method("clone", (machine.tape.call_method("detach", (tensor,)),))
    return machine.tape.call_method("requires_grad_", (made,)) if tensor.requires_grad else made


_NEW_ARGUMENTS = ("__getnewargs__", "__getnewargs_ex__")


@substitute_for(object.__reduce_ex__)
def _reduce_ex(machine: Machine, args: Any, kwargs: Any) -> Any:
    """How copy.deepcopy takes an instance apart, as protocol 4 does: class and attributes."""
    obj = args[0]
    kind = type(obj)
    if python_method(machine, kind, "__reduce__") is not None:
        return machine.call(attributes.load_attr(machine, obj, "__reduce__"), (), {})
    if (
        kind.__dictoffset__ == 0
        or kind.__new__ is not object.__new__
        or copyreg._slotnames(kind)  # type: ignore[attr-defined]
        or any(python_method(machine, kind, name) is not None for name in _NEW_ARGUMENTS)
    ):
        by_program = ("__getstate__", *_NEW_ARGUMENTS)
        if machine.objects.is_known(obj) or any(
            python_method(machine, kind, name) is not None for name in by_program
        ):
            raise GraphBreak(
                "unknown-c-function",
                f"a {kind.__qualname__}, which existed before the call or has its own "
                f"ways, is copied or pickled",
            )
        return reduce_native(machine, args)
    if python_method(machine, kind, "__getstate__") is not None:
        state = machine.call(attributes.load_attr(machine, obj, "__getstate__"), (), {})
    else:
        state = attributes.instance_dict(machine, obj)
    return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]


def _release_arguments(machine: Machine, args: Any, kwargs: Any) -> None:
    """Nothing to do: the call holds the captured frame's arguments until the entry has run."""


substitute_if_new(release_arguments, _release_arguments)
