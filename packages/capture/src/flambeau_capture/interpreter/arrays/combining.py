"""NumPy's functions that put arrays together, choose between them, or spread one over another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays import layout
from flambeau_capture.interpreter.arrays.base import SYMBOLIC, ArrayBase, as_array, cast
from flambeau_capture.interpreter.arrays.creation import shape_of
from flambeau_capture.interpreter.arrays.handlers import handler
from flambeau_capture.interpreter.arrays.indexing import assigned
from flambeau_capture.interpreter.arrays.ufuncs import check_broadcast, store

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _common(machine: Machine, values: Any, dtype: Any) -> tuple[list[Any], list[torch.Tensor]]:
    items = list(values)
    arrays = [as_array(machine, value) for value in items]
    kind = np.result_type(*[array.dtype for array in arrays]) if dtype is None else np.dtype(dtype)
    return arrays, [cast(machine, array.tensor, kind) for array in arrays]


@handler(np.concatenate)
def _concatenate(
    machine: Machine,
    arrays: Any,
    /,
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    parts = list(arrays)
    if not parts:
        raise ValueError("need at least one array to concatenate")
    sources, tensors = _common(machine, parts, dtype)
    if any(source.ndim == 0 for source in sources):
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    if axis is None:
        tensors = [machine.tape.call_method("reshape", (tensor, (-1,))) for tensor in tensors]
        axis = 0
    ndim = tensors[0].ndim
    if any(tensor.ndim != ndim for tensor in tensors):
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly"
        )
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    for other in range(ndim):
        if other != axis % ndim and any(
            tensor.shape[other] != tensors[0].shape[other] for tensor in tensors
        ):
            raise ValueError(
                "all the input array dimensions except for the concatenation axis must match exactly"
            )
    found = machine.tape.call_function(torch.cat, (tensors, axis))
    if out is not None:
        store(out, found)
        return out
    order = (
        layout.k_order([source.base for source in sources], ndim)
        if ndim == sources[0].ndim
        else layout.c_order(ndim)
    )
    return machine.arrays.new(layout.in_order(machine.tape, found, order))


@handler(np.where)
def _where(machine: Machine, condition: Any, *choices: Any) -> Any:
    if len(choices) != 2:
        return as_array(machine, condition).nonzero()
    mask = as_array(machine, condition)
    kinds = [_weak(machine, choice) for choice in choices]
    kind = np.result_type(*kinds)
    parts = [cast(machine, as_array(machine, choice).tensor, kind) for choice in choices]
    test = cast(machine, mask.tensor, np.bool_)
    check_broadcast([test, *parts])
    found = machine.tape.call_function(torch.where, (test, *parts))
    tensors = [value.base for value in (mask, *choices) if issubclass(type(value), ArrayBase)]
    order = layout.k_order(tensors, found.ndim) if tensors else layout.c_order(found.ndim)
    return machine.arrays.new(layout.in_order(machine.tape, found, order))


def _weak(machine: Machine, value: Any) -> Any:
    """What takes part in promotion: numbers weakly."""
    if type(value) in (bool, int, float, complex) or isinstance(value, np.generic):
        return value
    if type(value) in SYMBOLIC:
        return 0 if type(value) is torch.SymInt else 0.0
    return as_array(machine, value).dtype


@handler(np.broadcast_to)
def _broadcast_to(machine: Machine, array: Any, shape: Any, subok: Any = False) -> Any:
    source = as_array(machine, array)
    found = machine.tape.call_function(
        torch.broadcast_to, (source.unflipped("np.broadcast_to"), shape_of(machine, shape))
    )
    return source.new(found, writeable=False)


@handler(np.broadcast_arrays)
def _broadcast_arrays(machine: Machine, *args: Any, subok: Any = False) -> Any:
    sources = [as_array(machine, arg) for arg in args]
    shape = np.broadcast_shapes(*[source.shape for source in sources])
    return tuple(
        source if source.shape == shape else _broadcast_to(machine, source, shape)
        for source in sources
    )


@handler(np.copyto)
def _copyto(
    machine: Machine, dst: Any, src: Any, casting: Any = "same_kind", where: Any = True
) -> None:
    if issubclass(type(src), ArrayBase) and not np.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(
            f"Cannot cast array data from {src.dtype!r} to {dst.dtype!r} according to the rule '{casting}'"
        )
    value = assigned(machine, src, dst.dtype)
    if where is not True:
        mask = as_array(machine, where).tensor
        value = machine.tape.call_function(torch.where, (mask, value, dst.tensor))
    dst.write(value)
