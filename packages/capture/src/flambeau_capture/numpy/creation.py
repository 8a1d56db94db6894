"""NumPy's functions that make arrays: of other values, filled, like others, ranges, or by putting
arrays together, choosing between them, and spreading one over another.

Also the objects that NumPy's Python code uses: argument converters, shapes of broadcasts, error
states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import SYMBOLIC, ArrayBase, arrays_of, as_array, cast, plain
from flambeau_capture.numpy.indexing import assigned
from flambeau_capture.numpy.layout import handler, torch_dtype
from flambeau_capture.numpy.ufuncs import check_broadcast, store
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
    machine: Machine, object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K",
    subok: Any = False, ndmin: int = 0, like: Any = None,
) -> Any:  # fmt: skip
    found = _with_copy(machine, object, dtype, order, copy)
    if found.ndim < ndmin:
        found = found.reshape((1,) * (ndmin - found.ndim) + found.shape)
    return found


@handler(np.asarray, np.asanyarray, makes=True)
def _asarray(
    machine: Machine, a: Any, dtype: Any = None, order: Any = None, *, device: Any = None,
    copy: Any = None, like: Any = None,
) -> Any:  # fmt: skip
    return _with_copy(machine, a, dtype, order, copy)


def _ordered(order: str) -> Callable[..., Any]:
    def make(machine: Machine, a: Any, dtype: Any = None, *, like: Any = None) -> Any:
        found = _with_copy(machine, a, dtype, order, None)
        return found if found.ndim else found.reshape((1,))

    return make


handler(np.ascontiguousarray, makes=True)(_ordered("C"))
handler(np.asfortranarray, makes=True)(_ordered("F"))


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
    options = {"dtype": torch_dtype(dtype), "device": arrays_of(machine).device}
    sizes = tuple(reversed(sizes)) if fortran else sizes
    found = arrays_of(machine).new(machine.tape.call_function(function, (sizes, *value), options))
    return found.transpose() if fortran else found


def _filled(function: Any) -> Callable[..., Any]:
    def make(
        machine: Machine, shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None,
        like: Any = None,
    ) -> Any:  # fmt: skip
        return _made(machine, function, shape, dtype or float, order)

    return make


def _filled_like(function: Any) -> Callable[..., Any]:
    def make(
        machine: Machine, a: Any = None, dtype: Any = None, order: Any = "K", subok: Any = True,
        shape: Any = None, *, device: Any = None, prototype: Any = None,
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
    machine: Machine, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *,
    device: Any = None, like: Any = None,
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
    machine: Machine, a: Any, fill_value: Any, dtype: Any = None, order: Any = "K",
    subok: Any = True, shape: Any = None, *, device: Any = None,
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
    options = {"dtype": torch_dtype(dtype or np.int64), "device": arrays_of(machine).device}
    return arrays_of(machine).new(machine.tape.call_function(torch.arange, tuple(bounds), options))


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
    options = {"dtype": torch_dtype(dtype or float), "device": arrays_of(machine).device}
    columns = N if M is None else M
    return arrays_of(machine).new(machine.tape.call_function(torch.eye, (N, columns), options))


@handler(np.identity)
def _identity(machine: Machine, n: Any, dtype: Any = None, *, like: Any = None) -> Any:
    return _eye(machine, n, dtype=dtype or float)


# ---------------------------------------------------------------- converters


class ErrorState(Proxy):
    """`with np.errstate(divide="ignore")`: what the graph computes gives no warnings anyway."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> None:
        return None


class ArrayConverter(Proxy):
    """`_array_converter(*values)`: arguments as arrays, and whether they were scalars."""

    __slots__ = ("arrays", "machine", "values")

    def __init__(self, machine: Machine, values: tuple[Any, ...]) -> None:
        self.machine, self.values = machine, values
        self.arrays = [as_array(machine, value) for value in values]

    @property
    def scalar_input(self) -> tuple[bool, ...]:
        """For each argument, whether it was a number or scalar."""
        return tuple(_is_scalar(value) for value in self.values)

    def __getitem__(self, at: int) -> Any:
        return self.arrays[at]

    def __len__(self) -> int:
        return len(self.arrays)

    def as_arrays(
        self, subok: bool = True, pyscalars: str = "convert_if_no_array"
    ) -> tuple[Any, ...]:
        """All arguments as arrays, numbers as they are where they are to take part weakly."""
        numbers = [type(value) in (int, float, complex, *SYMBOLIC) for value in self.values]
        keeps = pyscalars == "preserve" or (pyscalars == "convert_if_no_array" and not all(numbers))
        return tuple(
            value if number and keeps else array
            for value, number, array in zip(self.values, numbers, self.arrays, strict=True)
        )

    def result_type(self, extra_dtype: Any = None, ensure_inexact: bool = False) -> Any:
        """The common dtype."""
        kinds: list[Any] = [
            array.dtype if type(value) not in (bool, int, float, complex) else value
            for value, array in zip(self.values, self.arrays, strict=True)
        ]
        kinds += [] if extra_dtype is None else [extra_dtype]
        return np.result_type(*kinds, *([0.0] if ensure_inexact else []))

    def wrap(self, array: Any, /, to_scalar: Any = None) -> Any:
        """A result as the function gives it back."""
        scalar = all(self.scalar_input) if to_scalar is None else to_scalar
        if scalar and issubclass(type(array), ArrayBase) and array.ndim == 0:
            return array.new(array.base, scalar=True)
        return array


def _is_scalar(value: Any) -> bool:
    if issubclass(type(value), ArrayBase):
        return bool(value.scalar)
    return not isinstance(value, (list, tuple))


def broadcast_of(values: tuple[Any, ...]) -> Any:
    """`np.broadcast` of arrays, for its shape."""
    empty = np.empty(())
    return np.broadcast(
        *[
            np.broadcast_to(empty, tuple(int(size) for size in value.shape))
            if issubclass(type(value), ArrayBase)
            else value
            for value in values
        ]
    )


# ---------------------------------------------------------------- combining


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
                "all the input array dimensions except for the concatenation axis must "
                "match exactly"
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
    return arrays_of(machine).new(layout.in_order(machine.tape, found, order))


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
    return arrays_of(machine).new(layout.in_order(machine.tape, found, order))


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
            f"Cannot cast array data from {src.dtype!r} to {dst.dtype!r} according to the "
            f"rule '{casting}'"
        )
    value = assigned(machine, src, dst.dtype)
    if where is not True:
        mask = as_array(machine, where).tensor
        value = machine.tape.call_function(torch.where, (mask, value, dst.tensor))
    dst.write(value)
