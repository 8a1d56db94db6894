"""NumPy's functions that make arrays: of other values, filled, like others, ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays import layout
from flambeau_capture.interpreter.arrays.base import ArrayBase, as_array, plain
from flambeau_capture.interpreter.arrays.dtypes import torch_dtype
from flambeau_capture.interpreter.arrays.handlers import handler
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _with_copy(machine: Machine, value: Any, dtype: Any, order: Any, copy: Any) -> Any:
    found = as_array(machine, value, dtype)
    shared = (
        found is value
        or isinstance(value, torch.Tensor)
        or (issubclass(type(value), ArrayBase) and found.base is value.base)
    )
    if copy and shared:
        return found.new(found.base).copy(order or "K")
    if order in ("C", "F"):
        wanted = layout.wanted(order, [], found.ndim)
        if found.flips or not layout.is_in_order(found.base, wanted):
            return found.copy(order)
    return found


@handler(np.array, makes=True)
def _array(
    machine: Machine, object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K", subok: Any = False, ndmin: int = 0, like: Any = None
) -> Any:  # fmt: skip
    found = _with_copy(machine, object, dtype, order, copy)
    if found.ndim < ndmin:
        found = found.reshape((1,) * (ndmin - found.ndim) + found.shape)
    return found


@handler(np.asarray, np.asanyarray, makes=True)
def _asarray(
    machine: Machine, a: Any, dtype: Any = None, order: Any = None, *, device: Any = None, copy: Any = None, like: Any = None
) -> Any:  # fmt: skip
    return _with_copy(machine, a, dtype, order, copy)


@handler(np.ascontiguousarray, makes=True)
def _ascontiguousarray(machine: Machine, a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    found = _with_copy(machine, a, dtype, "C", None)
    return found if found.ndim else found.reshape((1,))


@handler(np.asfortranarray, makes=True)
def _asfortranarray(machine: Machine, a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    found = _with_copy(machine, a, dtype, "F", None)
    return found if found.ndim else found.reshape((1,))


@handler(np.copy, makes=True)
def _copy(machine: Machine, a: Any, order: Any = "K", subok: Any = False) -> Any:
    found = as_array(machine, a)
    return found.new(found.base, flips=found.flips).copy(order)


def shape_of(machine: Machine, shape: Any) -> tuple[Any, ...]:
    """A shape as NumPy's functions take it: one size, or several."""
    sizes = plain(machine, shape)
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)


def _made(machine: Machine, function: Any, shape: Any, dtype: Any, order: Any, *value: Any) -> Any:
    sizes = shape_of(machine, shape)
    fortran = order == "F" and len(sizes) > 1
    options = {"dtype": torch_dtype(dtype), "device": machine.arrays.device}
    sizes = tuple(reversed(sizes)) if fortran else sizes
    found = machine.arrays.new(machine.tape.call_function(function, (sizes, *value), options))
    return found.transpose() if fortran else found


def _filled(function: Any) -> Callable[..., Any]:
    def make(
        machine: Machine, shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None, like: Any = None
    ) -> Any:  # fmt: skip
        return _made(machine, function, shape, dtype or float, order)

    return make


def _filled_like(function: Any) -> Callable[..., Any]:
    def make(
        machine: Machine, a: Any = None, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None,
        prototype: Any = None,
    ) -> Any:  # fmt: skip
        return _like(machine, function, a if prototype is None else prototype, dtype, order, shape)

    return make


_FILLED: tuple[tuple[Any, Any, Any], ...] = (
    (np.zeros, np.zeros_like, torch.zeros),
    (np.ones, np.ones_like, torch.ones),
    (np.empty, np.empty_like, torch.empty),
)
for _of_shape, _of_array, _function in _FILLED:
    handler(_of_shape, makes=True)(_filled(_function))
    handler(_of_array)(_filled_like(_function))


@handler(np.full, makes=True)
def _full(
    machine: Machine, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, device: Any = None, like: Any = None
) -> Any:  # fmt: skip
    kind = as_array(machine, fill_value).dtype if dtype is None else np.dtype(dtype)
    found = _made(machine, torch.empty, shape, kind, order)
    found[...] = fill_value
    return found


def _like(machine: Machine, function: Any, a: Any, dtype: Any, order: Any, shape: Any) -> Any:
    source = as_array(machine, a)
    kind = source.dtype if dtype is None else dtype
    sizes = source.shape if shape is None else shape_of(machine, shape)
    wanted = layout.copied(order, source.base)
    if len(sizes) != source.ndim:
        wanted = layout.c_order(len(sizes))
    found = _made(machine, function, tuple(sizes[axis] for axis in wanted), kind, "C")
    return (
        found.transpose(layout.inverse(wanted)) if wanted != layout.c_order(len(sizes)) else found
    )


@handler(np.full_like)
def _full_like(
    machine: Machine, a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None
) -> Any:  # fmt: skip
    found = _like(machine, torch.empty, a, dtype, order, shape)
    found[...] = fill_value
    return found


@handler(np.arange)
def _arange(
    machine: Machine,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    like: Any = None,
    **named: Any,
) -> Any:
    bounds = [*args, *(named[name] for name in ("start", "stop", "step") if name in named)]
    if len(bounds) == 4:
        dtype = bounds.pop()
    if not all(isinstance(bound, int) or type(bound) is torch.SymInt for bound in bounds):
        raise GraphBreak("numpy-unsupported", "np.arange with bounds that are no integers")
    options = {"dtype": torch_dtype(dtype or np.int64), "device": machine.arrays.device}
    return machine.arrays.new(machine.tape.call_function(torch.arange, tuple(bounds), options))


@handler(np.eye)
def _eye(
    machine: Machine,
    N: Any,
    M: Any = None,
    k: int = 0,
    dtype: Any = float,
    order: str = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Any:
    if k or order != "C":
        raise GraphBreak("numpy-unsupported", "np.eye of symbolic sizes with an offset")
    options = {"dtype": torch_dtype(dtype or float), "device": machine.arrays.device}
    columns = N if M is None else M
    return machine.arrays.new(machine.tape.call_function(torch.eye, (N, columns), options))


@handler(np.identity)
def _identity(machine: Machine, n: Any, dtype: Any = None, *, like: Any = None) -> Any:
    return _eye(machine, n, dtype=dtype or float)
