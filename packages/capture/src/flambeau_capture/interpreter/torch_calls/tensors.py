"""Attributes of tensors: read natively from the fake, as calls on the tape, or from the real tensor
behind an input.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.torch_calls.hooks import GradFn
from flambeau_capture.interpreter.torch_calls.wrappers import wrapper_attribute
from flambeau_capture.interpreter.values.classes import MISSING
from flambeau_capture.interpreter.values.subclasses import NOT_DISPATCHED, own_class_attribute
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import Attribute, DictEntry, GradOf, InstanceDict
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

if TYPE_CHECKING:
    from flambeau_capture.interpreter.torch_calls.tape import TapeRecorder

_NATIVE = frozenset({
    "shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "is_cpu", "is_meta", "layout",
    "is_leaf", "itemsize", "nbytes", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested",
    "is_mkldnn", "is_xpu", "is_mps", "is_mtia", "is_hpu", "is_vulkan", "is_xla", "is_ipu",
    "is_maia", "retains_grad", "output_nr", "__class__",
})  # fmt: skip
_NATIVE_TO_SUBCLASSES = frozenset({"__dict__", "__class__", "__weakref__"})
_HISTORY = ("grad_fn", "_base", "_backward_hooks", "_post_accumulate_grad_hooks")
_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


def load_tensor_attribute(machine: TapeRecorder, tensor: torch.Tensor, name: str) -> Any:
    """`tensor.name`."""
    subclass = machine.tape.subclasses.of(tensor)
    if is_wrapper_subclass(type(tensor)):
        found = wrapper_attribute(machine, tensor, name)
        if found is not MISSING:
            return found
    elif subclass is not None:
        found = _subclass_attribute(machine, tensor, subclass, name)
        if found is not MISSING:
            return found
    if name in _NATIVE or name in _VIEWS:
        machine.rely_on(machine.tape.real_type(tensor), name)
    if name in _NATIVE:
        return machine.tape.real_type(tensor) if name == "__class__" else getattr(tensor, name)
    if name == "_version":
        return _version(machine, tensor)
    if name in _VIEWS:
        return machine.tape.call_function(getattr, (tensor, name))
    pending = machine.objects.pending_writes_of(tensor)
    if pending is not None and name in pending:
        return pending[name]
    if name == "grad":
        return _grad(machine, tensor)
    machine.rely_on(machine.tape.real_type(tensor), name)
    raw = getattr(machine.tape.real_type(tensor), name, MISSING)
    if raw is not MISSING:
        if isinstance(
            raw, (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
        ):
            return types.MethodType(raw, tensor)
        if name in _HISTORY and getattr(tensor, name) is None:
            return None
        if name == "grad_fn" and machine.tape.input_of(tensor) is None:
            return _grad_fn(machine, tensor)
        raise GraphBreak("tensor-attribute", f"attribute {name!r} of a tensor is read")
    return _own_attribute(machine, tensor, name)


def _subclass_attribute(
    machine: TapeRecorder, tensor: torch.Tensor, cls: type[torch.Tensor], name: str
) -> Any:
    """An attribute that a subclass defines, or its `__torch_function__` gives; else MISSING."""
    raw = own_class_attribute(cls, name)
    if type(raw) is property:
        return machine.call(raw.fget, (tensor,), {})
    if type(raw) is types.FunctionType:
        return types.MethodType(raw, tensor)
    if raw is not None:
        return machine.load(cls, name)
    getter = torch.Tensor.__dict__.get(name) or torch._C.TensorBase.__dict__.get(name)
    if type(getter) is types.GetSetDescriptorType and name not in _NATIVE_TO_SUBCLASSES:
        subclasses = machine.tape.subclasses
        overloads = subclasses.overloads((tensor,), {})
        if overloads:
            result = subclasses.dispatch(overloads, getter.__get__, (tensor,), {})
            if result is not NOT_DISPATCHED:
                return result
    return MISSING


def _grad_fn(machine: TapeRecorder, tensor: torch.Tensor) -> GradFn:
    """The stand-in for the node that made a tensor of the frame, one for each node."""
    tape, node = machine.tape, tensor.grad_fn
    found = tape.grad_fns.get(id(node))
    if found is None:
        found = tape.grad_fns[id(node)] = GradFn(machine, tensor)
    return found


def _version(machine: TapeRecorder, tensor: torch.Tensor) -> Any:
    """An input's version when the call began, which is guarded, and the writes since."""
    found = machine.tape.input_of(tensor)
    if found is not None:
        real, entry = found
        before = machine.objects.wrap(real._version, Attribute(entry.source, "_version"))
        return before + tensor._version
    if tensor.storage_record.given:  # type: ignore[attr-defined]
        raise GraphBreak("tensor-attribute", "the version of a view of an input is read")
    return tensor._version


def _grad(machine: TapeRecorder, tensor: torch.Tensor) -> Any:
    found = machine.tape.input_of(tensor)
    if found is None:
        return tensor.grad
    real, entry = found
    return machine.objects.wrap(real.grad, GradOf(entry.source))


def _own_attribute(machine: TapeRecorder, tensor: torch.Tensor, name: str) -> Any:
    """An attribute that the program has set on a tensor."""
    found = machine.tape.input_of(tensor)
    if found is not None:
        real, entry = found
        base = InstanceDict(entry.source)
        if name in real.__dict__:
            return machine.objects.wrap(real.__dict__[name], DictEntry(base, name))
        machine.guard("ABSENT", base, name)
    message = f"{machine.tape.real_type(tensor).__name__!r} object has no attribute {name!r}"
    raise AttributeError(message)


def store_tensor_attribute(
    machine: TapeRecorder, tensor: torch.Tensor, name: str, value: Any
) -> None:
    """`tensor.name = value`."""
    if name == "requires_grad":
        machine.tape.call_method("requires_grad_", (tensor, value))
        return
    if name == "data" or (hasattr(torch.Tensor, name) and name != "grad"):
        raise GraphBreak("tensor-attribute", f"attribute {name!r} of a tensor is set")
    if name != "grad" and is_wrapper_subclass(type(tensor)):
        # Its class computes with its attributes.
        raise GraphBreak("tensor-attribute", f"attribute {name!r} of a wrapper subclass is set")
    machine.objects.add_pending_write(tensor, name, value)
    if machine.tape.input_of(tensor) is not None:
        machine.objects.note_attribute_write(tensor, name, raw=False)


def delete_tensor_attribute(machine: TapeRecorder, tensor: torch.Tensor, name: str) -> None:
    """`del tensor.name`."""
    pending = machine.objects.pending_writes_of(tensor)
    if machine.tape.input_of(tensor) is None and pending is not None and name in pending:
        del pending[name]
        return
    raise GraphBreak("tensor-attribute", f"attribute {name!r} of a tensor is deleted")
