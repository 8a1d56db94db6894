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
from flambeau_capture.numpy.arrays import SYMBOLIC, as_array, cast, is_array, plain
from flambeau_capture.numpy.indexing import assigned
from flambeau_capture.numpy.layout import handler, torch_dtype, unsupported
from flambeau_capture.numpy.ufuncs import check_broadcast, store

if TYPE_CHECKING:
    from flambeau_capture.numpy.arrays import Arrays


def _with_copy(arrays: Arrays, value: Any, dtype: Any, order: Any, copy: Any) -> Any:
    found = as_array(arrays, value, dtype)
    shared = (
        found is value
        or isinstance(value, torch.Tensor)
        or (is_array(value) and found.base is value.base)
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
    arrays: Arrays, object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K",
    subok: Any = False, ndmin: int = 0, like: Any = None,
) -> Any:  # fmt: skip
    found = _with_copy(arrays, object, dtype, order, copy)
    if found.ndim < ndmin:
        found = found.reshape((1,) * (ndmin - found.ndim) + found.shape)
    return found


@handler(np.asarray, np.asanyarray, makes=True)
def _asarray(
    arrays: Arrays, a: Any, dtype: Any = None, order: Any = None, *, device: Any = None,
    copy: Any = None, like: Any = None,
) -> Any:  # fmt: skip
    return _with_copy(arrays, a, dtype, order, copy)


def _ordered(order: str) -> Callable[..., Any]:
    def make(arrays: Arrays, a: Any, dtype: Any = None, *, like: Any = None) -> Any:
        found = _with_copy(arrays, a, dtype, order, None)
        return found if found.ndim else found.reshape((1,))

    return make


handler(np.ascontiguousarray, makes=True)(_ordered("C"))
handler(np.asfortranarray, makes=True)(_ordered("F"))


@handler(np.copy, makes=True)
def _copy(arrays: Arrays, a: Any, order: Any = "K", subok: Any = False) -> Any:
    found = as_array(arrays, a)
    return found.new(found.base, flips=found.flips).copy(order)


def shape_of(arrays: Arrays, shape: Any) -> tuple[Any, ...]:
    """A shape as NumPy's functions take it: one size, or several."""
    sizes = plain(arrays, shape)
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)


def _made(arrays: Arrays, function: Any, shape: Any, dtype: Any, order: Any, *value: Any) -> Any:
    sizes = shape_of(arrays, shape)
    fortran = order == "F" and len(sizes) > 1
    options = {"dtype": torch_dtype(dtype), "device": arrays.device}
    sizes = tuple(reversed(sizes)) if fortran else sizes
    found = arrays.new(arrays.record(function, sizes, *value, **options))
    return found.transpose() if fortran else found


def _filled(function: Any) -> Callable[..., Any]:
    def make(
        arrays: Arrays, shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None,
        like: Any = None,
    ) -> Any:  # fmt: skip
        return _made(arrays, function, shape, dtype or float, order)

    return make


def _filled_like(function: Any) -> Callable[..., Any]:
    def make(
        arrays: Arrays, a: Any = None, dtype: Any = None, order: Any = "K", subok: Any = True,
        shape: Any = None, *, device: Any = None, prototype: Any = None,
    ) -> Any:  # fmt: skip
        return _like(arrays, function, a if prototype is None else prototype, dtype, order, shape)

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
    arrays: Arrays, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *,
    device: Any = None, like: Any = None,
) -> Any:  # fmt: skip
    kind = as_array(arrays, fill_value).dtype if dtype is None else np.dtype(dtype)
    found = _made(arrays, torch.empty, shape, kind, order)
    found[...] = fill_value
    return found


def _like(arrays: Arrays, function: Any, a: Any, dtype: Any, order: Any, shape: Any) -> Any:
    source = as_array(arrays, a)
    kind = source.dtype if dtype is None else dtype
    sizes = source.shape if shape is None else shape_of(arrays, shape)
    wanted = layout.copied(order, source.base)
    if len(sizes) != source.ndim:
        wanted = layout.c_order(len(sizes))
    found = _made(arrays, function, tuple(sizes[axis] for axis in wanted), kind, "C")
    is_c_order = wanted == layout.c_order(len(sizes))
    return found if is_c_order else found.transpose(layout.inverse(wanted))


@handler(np.full_like)
def _full_like(
    arrays: Arrays, a: Any, fill_value: Any, dtype: Any = None, order: Any = "K",
    subok: Any = True, shape: Any = None, *, device: Any = None,
) -> Any:  # fmt: skip
    found = _like(arrays, torch.empty, a, dtype, order, shape)
    found[...] = fill_value
    return found


@handler(np.arange)
def _arange(
    arrays: Arrays,
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
        raise unsupported("np.arange with bounds that are no integers")
    options = {"dtype": torch_dtype(dtype or np.int64), "device": arrays.device}
    return arrays.new(arrays.record(torch.arange, *bounds, **options))


@handler(np.eye)
def _eye(
    arrays: Arrays,
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
        raise unsupported("np.eye of symbolic sizes with an offset")
    options = {"dtype": torch_dtype(dtype or float), "device": arrays.device}
    columns = N if M is None else M
    return arrays.new(arrays.record(torch.eye, N, columns, **options))


@handler(np.identity)
def _identity(arrays: Arrays, n: Any, dtype: Any = None, *, like: Any = None) -> Any:
    return _eye(arrays, n, dtype=dtype or float)


# ---------------------------------------------------------------- converters


class ErrorState(Proxy):
    """`with np.errstate(divide="ignore")`: a graph gives no such warnings."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> None:
        return None


class ArrayConverter(Proxy):
    """`_array_converter(*values)`: arguments as arrays, and whether they were scalars."""

    __slots__ = ("arrays", "machine", "values")

    def __init__(self, arrays: Arrays, values: tuple[Any, ...]) -> None:
        self.machine = arrays.machine
        self.values = values
        self.arrays = [as_array(arrays, value) for value in values]

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
        """A result as the function gives it back: as a tensor, if an argument was one."""
        tensor = next((value for value in self.values if isinstance(value, torch.Tensor)), None)
        if tensor is not None and is_array(array):
            method, made = torch.Tensor.__array_wrap__, array.new(array.base)
            return self.machine.interpret(method, (tensor, made), {})
        scalar = all(self.scalar_input) if to_scalar is None else to_scalar
        if scalar and is_array(array) and array.ndim == 0:
            return array.new(array.base, scalar=True)
        return array


def _is_scalar(value: Any) -> bool:
    if is_array(value):
        return bool(value.scalar)
    return not isinstance(value, (list, tuple))


def broadcast_of(values: tuple[Any, ...]) -> Any:
    """`np.broadcast` of arrays, for its shape."""
    shapes = [tuple(map(int, value.shape)) if is_array(value) else None for value in values]
    pairs = zip(values, shapes, strict=True)
    return np.broadcast(*[v if s is None else np.broadcast_to(np.empty(()), s) for v, s in pairs])


# ---------------------------------------------------------------- combining


def _common(arrays: Arrays, values: Any, dtype: Any) -> tuple[list[Any], list[torch.Tensor]]:
    sources = [as_array(arrays, value) for value in values]
    kinds = [source.dtype for source in sources]
    kind = np.result_type(*kinds) if dtype is None else np.dtype(dtype)
    return sources, [cast(arrays, source.tensor, kind) for source in sources]


@handler(np.concatenate)
def _concatenate(
    arrays: Arrays,
    values: Any,
    /,
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    parts = list(values)
    if not parts:
        raise ValueError("need at least one array to concatenate")
    sources, tensors = _common(arrays, parts, dtype)
    if any(source.ndim == 0 for source in sources):
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    if axis is None:
        tensors = [arrays.record("reshape", tensor, (-1,)) for tensor in tensors]
        axis = 0
    ndim = tensors[0].ndim
    mismatch = ValueError(
        "all the input array dimensions except for the concatenation axis must match exactly"
    )
    if any(tensor.ndim != ndim for tensor in tensors):
        raise mismatch
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    others = [other for other in range(ndim) if other != axis % ndim]
    if any(tensor.shape[at] != tensors[0].shape[at] for tensor in tensors for at in others):
        raise mismatch
    found = arrays.record(torch.cat, tensors, axis)
    if out is not None:
        store(out, found)
        return out
    same = ndim == sources[0].ndim
    order = layout.k_order([s.base for s in sources], ndim) if same else layout.c_order(ndim)
    return arrays.new(layout.in_order(arrays.tape, found, order))


@handler(np.where)
def _where(arrays: Arrays, condition: Any, *choices: Any) -> Any:
    if len(choices) != 2:
        return as_array(arrays, condition).nonzero()
    mask = as_array(arrays, condition)
    kinds = [_weak(arrays, choice) for choice in choices]
    kind = np.result_type(*kinds)
    parts = [cast(arrays, as_array(arrays, choice).tensor, kind) for choice in choices]
    test = cast(arrays, mask.tensor, np.bool_)
    check_broadcast([test, *parts])
    found = arrays.record(torch.where, test, *parts)
    tensors = [value.base for value in (mask, *choices) if is_array(value)]
    order = layout.k_order(tensors, found.ndim) if tensors else layout.c_order(found.ndim)
    return arrays.new(layout.in_order(arrays.tape, found, order))


def _weak(arrays: Arrays, value: Any) -> Any:
    """What takes part in promotion: numbers weakly."""
    if type(value) in (bool, int, float, complex) or isinstance(value, np.generic):
        return value
    if type(value) in SYMBOLIC:
        return 0 if type(value) is torch.SymInt else 0.0
    return as_array(arrays, value).dtype


@handler(np.broadcast_to)
def _broadcast_to(arrays: Arrays, array: Any, shape: Any, subok: Any = False) -> Any:
    source = as_array(arrays, array)
    found = arrays.record(
        torch.broadcast_to, source.unflipped("np.broadcast_to"), shape_of(arrays, shape)
    )
    return source.new(found, writeable=False)


@handler(np.broadcast_arrays)
def _broadcast_arrays(arrays: Arrays, *args: Any, subok: Any = False) -> Any:
    sources = [as_array(arrays, arg) for arg in args]
    shape = np.broadcast_shapes(*[source.shape for source in sources])
    return tuple(
        source if source.shape == shape else _broadcast_to(arrays, source, shape)
        for source in sources
    )


@handler(np.copyto)
def _copyto(
    arrays: Arrays, dst: Any, src: Any, casting: Any = "same_kind", where: Any = True
) -> None:
    if is_array(src) and not np.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(
            f"Cannot cast array data from {src.dtype!r} to {dst.dtype!r} according to the "
            f"rule '{casting}'"
        )
    value = assigned(arrays, src, dst.dtype)
    if where is not True:
        mask = as_array(arrays, where).tensor
        value = arrays.record(torch.where, mask, value, dst.tensor)
    dst.write(value)
