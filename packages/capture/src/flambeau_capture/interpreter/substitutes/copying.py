"""Shallow copies, and how copy.deepcopy takes instances apart."""

from __future__ import annotations

import collections
import copy
import copyreg
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter import attributes
from flambeau_capture.interpreter.classes import python_method
from flambeau_capture.interpreter.objects import new_object
from flambeau_capture.interpreter.substitutes.registry import substitute_for
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
            machine.whole_dict(obj) if kind is dict and machine.objects.is_known(obj) else obj
        )
    if isinstance(obj, (type, types.FunctionType, types.ModuleType)):
        return obj
    if not hasattr(obj, "__dict__") or isinstance(obj, (list, dict, set, tuple)):
        return machine.interpret(copy.copy, args, kwargs)
    made = new_object(kind)
    made.__dict__.update(attributes.instance_dict(machine, obj))
    return made


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
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment"
        )
    if machine.tape.real_type(tensor) is not torch.Tensor:
        raise GraphBreak("parameter-made", "an nn.Parameter is copied")
    made = machine.tape.call_method("clone", (machine.tape.call_method("detach", (tensor,)),))
    return machine.tape.call_method("requires_grad_", (made,)) if tensor.requires_grad else made


@substitute_for(object.__reduce_ex__)
def _reduce_ex(machine: Machine, args: Any, kwargs: Any) -> Any:
    """How copy.deepcopy takes an instance apart: class and attributes (through origins), as protocol 4 does."""
    obj = args[0]
    kind = type(obj)
    if python_method(machine, kind, "__reduce__") is not None:
        return machine.call(attributes.load_attr(machine, obj, "__reduce__"), (), {})
    if (
        isinstance(obj, (list, dict, set, tuple))
        or not hasattr(obj, "__dict__")
        or kind.__new__ is not object.__new__
    ):
        if machine.objects.is_known(obj):
            raise GraphBreak(
                "unknown-c-function",
                f"a {kind.__qualname__} that existed before the call is copied or pickled",
            )
        return object.__reduce_ex__(*args)
    if python_method(machine, kind, "__getstate__") is not None:
        state = machine.call(attributes.load_attr(machine, obj, "__getstate__"), (), {})
    else:
        state = attributes.instance_dict(machine, obj)
    return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]
