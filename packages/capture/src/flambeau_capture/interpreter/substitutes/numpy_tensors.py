"""Between torch and NumPy: tensors made of arrays, and arrays of tensors, over the same memory
where torch shares it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture import numpy_functions
from flambeau_capture.interpreter import numpy_objects
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.interpreter.values.deferred_strings import DeferredString

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(numpy_functions.arrays_of)
def _arrays_of(machine: Machine, args: Any, kwargs: Any) -> Any:
    arrays = numpy_objects.table_of(machine)

    def as_array(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type != "cpu":
            arrays.device = leaf.device
        return arrays.new(leaf)

    return numpy_functions.mapped(args[0], as_array)


@substitute_for(numpy_functions.tensors_of)
def _tensors_of(machine: Machine, args: Any, kwargs: Any) -> Any:
    def as_tensor(leaf: Any) -> Any:
        if _is_array(leaf):
            return leaf.tensor
        return make_tensor(machine, torch.tensor, (leaf,), {}) if is_numpys((leaf,)) else leaf

    found = numpy_functions.mapped(args[0], as_tensor)
    numpy_objects.table_of(machine).device = torch.device("cpu")
    return found


def _is_array(value: Any) -> bool:
    return (
        isinstance(value, Proxy)
        and type(value) is not DeferredString
        and value.seen_type() is not None
    )


def _plain(value: Any) -> tuple[Any, dict[str, Any]]:
    """A NumPy scalar as a Python number, and the dtype that torch would give it."""
    import numpy as np

    return value.item(), {"dtype": torch.from_numpy(np.asarray(value)).dtype}


@substitute_for(torch.from_numpy)
def _from_numpy(machine: Machine, args: Any, kwargs: Any) -> Any:
    (array,) = args
    if _is_array(array) and not array.scalar:
        machine.arrays.forget(array)
        return machine.tape.call_method("detach", (array.unflipped("torch.from_numpy"),))
    if _is_array(array) or numpy_objects.is_value(type(array)):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return machine.tape.call_function(torch.from_numpy, args, kwargs)


def is_numpys(args: tuple[Any, ...]) -> bool:
    """Whether the first argument is an array, or a NumPy scalar."""
    return bool(args) and (_is_array(args[0]) or numpy_objects.is_value(type(args[0])))


def make_tensor(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """`torch.tensor`, `torch.as_tensor` or `torch.asarray` of an array or NumPy scalar."""
    value, *rest = args
    options = dict(zip(("dtype", "device"), rest, strict=False)) | kwargs
    if not _is_array(value):
        number, dtype = _plain(value)
        return machine.tape.call_function(torch.tensor, (number,), {**dtype, **options})
    machine.arrays.forget(value)
    requires_grad = options.pop("requires_grad", False)
    if function is torch.tensor or value.scalar:
        made = machine.tape.call_method("clone", (value.tensor,))
    else:
        made = machine.tape.call_method("detach", (value.unflipped(function.__name__),))
    if options:
        made = machine.tape.call_method("to", (made,), options)
    return machine.tape.call_method("requires_grad_", (made,)) if requires_grad else made


@substitute_for(torch.asarray)
def _asarray(machine: Machine, args: Any, kwargs: Any) -> Any:
    if is_numpys(args) and not kwargs:
        return make_tensor(machine, torch.asarray, args, kwargs)
    return machine.tape.call_function(torch.asarray, args, kwargs)


@substitute_for(torch.Tensor.numpy)
def _numpy(machine: Machine, args: Any, kwargs: Any) -> Any:
    (tensor,) = args
    if kwargs.get("force"):
        tensor = machine.tape.call_method("detach", (tensor,))
        tensor = machine.tape.call_method("cpu", (tensor,))
    return numpy_objects.array_of(machine, tensor)


@substitute_for(torch.Tensor.__array__)
def _array(machine: Machine, args: Any, kwargs: Any) -> Any:
    array = _numpy(machine, args[:1], {})
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    return array if dtype is None else array.astype(dtype, copy=False)
