"""Calls of NumPy's functions: those that have a handler, those that are methods of arrays, and
those written in Python.

A Python function without a handler (`np.pad`, `np.linalg.norm`, `np.tile`, ...) is interpreted down
to functions that have handlers. A C function without one breaks the graph. A function of constants
is called at capture, and the graph makes the array that it returned.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.numpy import layout, linear_algebra
from flambeau_capture.numpy.array import Array
from flambeau_capture.numpy.arrays import (
    SYMBOLIC,
    Arrays,
    arrays_of,
    as_array,
    cast,
    from_tensor,
    is_array,
    is_constant,
    made_anew,
)
from flambeau_capture.numpy.creation import ArrayConverter, ErrorState, broadcast_of, shape_of
from flambeau_capture.numpy.layout import HANDLERS, MAKERS, handler, unsupported
from flambeau_capture.numpy.random import call_random, is_random, make
from flambeau_capture.numpy.ufuncs import call_ufunc, call_ufunc_method
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.substitute_registry import Substitute

_METHODS = (
    "sum", "prod", "max", "min", "amax", "amin", "any", "all", "mean", "std", "var", "argmax",
    "argmin", "cumsum", "cumprod", "ptp", "round", "around", "reshape", "ravel", "transpose",
    "swapaxes", "squeeze", "take", "repeat", "diagonal", "trace", "argsort", "searchsorted",
    "nonzero", "permute_dims", "matrix_transpose",
)  # fmt: skip
"""Functions that are methods of arrays."""
_NAMED = {
    "amax": "max",
    "amin": "min",
    "around": "round",
    "permute_dims": "transpose",
    "matrix_transpose": "mT",
}
_WITH_SIDE_EFFECTS = frozenset((
    "save", "savez", "savez_compressed", "savetxt", "load", "loadtxt", "genfromtxt",
    "array2string", "array_str", "array_repr", "fromregex",
))  # fmt: skip


class NumPyObjects(Arrays):
    """NumPy's objects in one capture: a `ForeignObjects`."""

    array_type = Array

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a class or C function of NumPy."""
        return call_numpy(self, function, args, kwargs)

    def call_python(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a public Python function of NumPy on constants; NotImplemented to interpret it."""
        name = function.__name__
        if (
            vars(np).get(name, self) is not function
            or name in _WITH_SIDE_EFFECTS
            or name.startswith(("set", "show"))
            or not (is_constant(args) and is_constant(kwargs))
        ):
            return NotImplemented
        return made_anew(self, function(*args, **kwargs))

    def array_of(self, tensor: torch.Tensor) -> Any:
        """`tensor.numpy()`."""
        return from_tensor(self, tensor)

    def shared_tensor(self, array: Any) -> torch.Tensor:
        """`torch.from_numpy(array)`."""
        if not is_array(array) or array.scalar:
            raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
        self.forget(array)
        return self.record("detach", array.unflipped("torch.from_numpy"))

    def make_tensor(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`torch.tensor`, `torch.as_tensor` or `torch.asarray` of an array or NumPy scalar."""
        value, *rest = args
        options = dict(zip(("dtype", "device"), rest, strict=False)) | kwargs
        if not is_array(value):
            dtype = torch.from_numpy(np.asarray(value)).dtype
            return self.record(torch.tensor, value.item(), **{"dtype": dtype, **options})
        self.forget(value)
        requires_grad = options.pop("requires_grad", False)
        if function is torch.tensor or value.scalar:
            made = self.record("clone", value.tensor)
        else:
            made = self.record("detach", value.unflipped(function.__name__))
        made = self.record("to", made, **options) if options else made
        return self.record("requires_grad_", made) if requires_grad else made


def call_numpy(arrays: Arrays, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of something of NumPy's that is not plain Python."""
    if isinstance(function, np.ufunc):
        return call_ufunc(arrays, function, args, kwargs)
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, np.ufunc):
        return call_ufunc_method(arrays, receiver, function.__name__, args, kwargs)
    if isinstance(function, type):
        return _construct(arrays, function, args, kwargs)
    if isinstance(receiver, (np.generic, np.dtype)) and is_constant(args) and is_constant(kwargs):
        return made_anew(arrays, function(*args, **kwargs))
    name = getattr(function, "__name__", "")
    if is_random(function, receiver):
        return call_random(arrays.machine, function, args, kwargs)
    if name in _WITH_SIDE_EFFECTS:
        raise GraphBreak("side-effect", f"call of numpy.{name}")
    handler = HANDLERS.get(id(function))
    python = getattr(function, "_implementation", None)
    if id(function) in _OF_METHODS and _has_methods(args):
        return arrays.machine.interpret(python, args, kwargs)
    if _may_call(function, handler) and is_constant(args) and is_constant(kwargs):
        return made_anew(arrays, function(*args, **kwargs))
    if handler is not None:
        return handler(arrays, *args, **kwargs)
    if type(python) is types.FunctionType:
        return arrays.machine.interpret(python, args, kwargs)
    raise unsupported(f"call of {getattr(function, '__module__', None) or 'numpy'}.{name}")


def _may_call(function: Any, handler: Any) -> bool:
    """Whether a function of constants may run during capture; public ones read nothing else."""
    return (
        (handler is not None and handler not in MAKERS)
        or hasattr(function, "_implementation")
        or id(function) in _PURE
    )


_PURE_MULTIARRAY = (
    "interp", "correlate", "_monotonicity", "count_nonzero", "get_handler_name",
)  # fmt: skip
_multiarray = np._core.multiarray  # type: ignore[attr-defined]
_array_converter = getattr(np._core._multiarray_umath, "_array_converter", None)  # type: ignore[attr-defined]
_PURE = {
    id(function)
    for function in (
        np.promote_types, np.datetime_data, np.lib.array_utils.normalize_axis_index, np.bincount,
        *(getattr(_multiarray, name, None) for name in _PURE_MULTIARRAY),
    )
}  # fmt: skip
"""Functions written in C that read their arguments only."""


def _construct(arrays: Arrays, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`np.float32(x)`, `np.dtype(...)`, `np.finfo(...)`."""
    if cls is np.random.RandomState:
        return make(arrays.machine, cls, args, kwargs)
    if is_constant(args) and is_constant(kwargs):
        if issubclass(cls, (np.generic, np.dtype)) or cls in (np.finfo, np.iinfo):
            return made_anew(arrays, cls(*args, **kwargs))
        if cls is np.broadcast:
            return np.broadcast(*args)
        if cls is np.errstate and "raise" not in kwargs.values() and "call" not in kwargs.values():
            return ErrorState()
    elif issubclass(cls, np.generic) and len(args) == 1 and not kwargs:
        found = as_array(arrays, args[0], cls)
        return found.new(found.base, scalar=found.ndim == 0)
    if cls is np.broadcast:
        return broadcast_of(args)
    if cls is _array_converter:
        return ArrayConverter(arrays, args)
    known = (np.generic, np.dtype, np.ndarray, np.finfo, np.iinfo, np.errstate)
    if not issubclass(cls, known):
        return NotImplemented
    raise unsupported(f"a {cls.__module__}.{cls.__qualname__} is made")


# ---------------------------------------------------------------- methods as functions

_OF_METHODS: set[int] = set()
"""Functions that give an attribute of their first argument, or what its method returns, if it has
that, whatever it is.
"""


def _has_methods(args: tuple[Any, ...]) -> bool:
    """Whether the first argument is a tensor: its methods are not NumPy's, and take other
    arguments.
    """
    return bool(args) and isinstance(args[0], torch.Tensor)


def _as_method(name: str) -> Callable[..., Any]:
    def call(arrays: Arrays, a: Any, *args: Any, **kwargs: Any) -> Any:
        array = as_array(arrays, a)
        if is_array(a) and a.scalar:
            array = array.new(array.base)
        found = getattr(array, name)
        return found(*args, **kwargs) if callable(found) else found

    return call


for _name in _METHODS:
    if hasattr(np, _name) and id(getattr(np, _name)) not in HANDLERS:
        handler(getattr(np, _name))(_as_method(_NAMED.get(_name, _name)))
        _OF_METHODS.add(id(getattr(np, _name)))
_OF_METHODS.update((id(np.clip), id(np.shape)))


@handler(np.clip)
def _clip(
    arrays: Arrays, a: Any, a_min: Any = np._NoValue, a_max: Any = np._NoValue, out: Any = None,
    *, min: Any = np._NoValue, max: Any = np._NoValue, **options: Any,
) -> Any:  # fmt: skip
    low, high = (
        next((given for given in pair if given is not np._NoValue), None)
        for pair in ((a_min, min), (a_max, max))
    )
    return as_array(arrays, a).clip(low, high, out, **options)


@handler(np.sort)
def _sort(
    arrays: Arrays,
    a: Any,
    axis: Any = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: Any = None,
) -> Any:
    found = as_array(arrays, a)
    found = found.flatten() if axis is None else found.copy("K")
    found.sort(-1 if axis is None else axis, kind, order)
    return found


def _asking(question: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda arrays, value: question(as_array(arrays, value))


for _function, _question in (
    (np.shape, lambda array: array.shape),
    (np.ndim, lambda array: array.ndim),
    (np.iscomplexobj, lambda array: array.dtype.kind == "c"),
    (np.isrealobj, lambda array: array.dtype.kind != "c"),
):
    handler(_function)(_asking(_question))


@handler(np.isscalar)
def _isscalar(arrays: Arrays, element: Any) -> bool:
    return type(element) in SYMBOLIC or (is_array(element) and element.scalar)


@handler(np.count_nonzero, _multiarray.count_nonzero)
def _count_nonzero(arrays: Arrays, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    return as_array(arrays, a).astype(np.bool_).sum(axis, keepdims=keepdims)


@handler(np.diag)
def _diag(arrays: Arrays, v: Any, k: int = 0) -> Any:
    source = as_array(arrays, v)
    if source.ndim == 1:
        return arrays.new(arrays.record(torch.diag, source.tensor, k))
    if source.ndim != 2:
        raise ValueError("Input must be 1- or 2-d.")
    return source.diagonal(k)


@handler(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(
    arrays: Arrays, x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False,
    writeable: bool = False,
) -> Any:  # fmt: skip
    source = as_array(arrays, x)
    sizes = shape_of(arrays, window_shape)
    axes = range(source.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if len(sizes) != len(axes):
        raise ValueError("window_shape and axis must have the same length")
    found = source.unflipped("sliding_window_view")
    for size, place in zip(sizes, axes, strict=True):
        if found.shape[place] < size:
            raise ValueError("window shape cannot be larger than input array shape")
        found = arrays.record("unfold", found, place % source.ndim, size, 1)
    return source.new(found, writeable=writeable and source.writeable)


@handler(np.isclose)
def _isclose(
    arrays: Arrays, a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Any:
    left, right = as_array(arrays, a), as_array(arrays, b)
    kind = np.result_type(left.dtype, right.dtype, 1.0)
    x, y = left.astype(kind, copy=False), right.astype(kind, copy=False)

    def test(ufunc: Any, value: Any) -> Any:
        return call_ufunc(arrays, ufunc, (value,), {})

    near = (abs(x - y) <= abs(y) * rtol + atol) & test(np.isfinite, y) | (x == y)
    return near | test(np.isnan, x) & test(np.isnan, y) if equal_nan else near


@handler(np.interp)
def _interp(
    arrays: Arrays,
    x: Any,
    xp: Any,
    fp: Any,
    left: Any = None,
    right: Any = None,
    period: Any = None,
) -> Any:
    if left is not None or right is not None or period is not None:
        raise unsupported("np.interp with left=, right= or period=")
    places = as_array(arrays, x)
    at, known, values = (
        cast(arrays, as_array(arrays, value).tensor, np.float64) for value in (x, xp, fp)
    )
    if known.shape[0] != values.shape[0]:
        raise ValueError("fp and xp are not of the same length.")
    size = int(known.shape[0])
    if size < 2:
        raise unsupported("np.interp between fewer than two points")

    call = arrays.record
    sought = call(torch.clone, at, memory_format=torch.contiguous_format)
    after = call(torch.searchsorted, known, sought, right=True)
    before = call(torch.clamp, call(torch.sub, after, 1), 0, size - 2)
    following = call(torch.add, before, 1)
    x0, y0 = (arrays.tape.getitem(table, before) for table in (known, values))
    x1, y1 = (arrays.tape.getitem(table, following) for table in (known, values))
    slope = call(torch.div, call(torch.sub, y1, y0), call(torch.sub, x1, x0))
    found = call(torch.add, call(torch.mul, slope, call(torch.sub, at, x0)), y0)
    first, last = (call(torch.select, values, 0, end) for end in (0, -1))
    found = call(torch.where, call(torch.lt, at, call(torch.select, known, 0, 0)), first, found)
    found = call(torch.where, call(torch.ge, at, call(torch.select, known, 0, -1)), last, found)
    return arrays.new(found, scalar=places.ndim == 0)


@handler(np.roll)
def _roll(arrays: Arrays, a: Any, shift: Any, axis: Any = None) -> Any:
    array = as_array(arrays, a)
    if not is_constant(shift) and not isinstance(shift, int):
        raise GraphBreak("data-dependent", "np.roll by a computed shift")
    if axis is None:
        flat = arrays.record("reshape", array.tensor, (-1,))
        found = arrays.record(torch.roll, flat, shift, 0)
        return array.new(arrays.record("reshape", found, array.shape))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(axes) == 1 and len(shifts) > 1:
        axes = axes * len(shifts)
    if any(not -array.ndim <= each < array.ndim for each in axes):
        raise np.exceptions.AxisError(axes[0], array.ndim)
    found = arrays.record(torch.roll, array.tensor, shifts, axes)
    return array.new(layout.in_order(array.tape, found, layout.copied("K", array.base)))


@handler(np.result_type)
def _result_type(arrays: Arrays, *values: Any) -> Any:
    return np.result_type(*[_typed(value) for value in values])


@handler(np.can_cast)
def _can_cast(arrays: Arrays, from_: Any, to: Any, casting: Any = "safe") -> bool:
    return bool(np.can_cast(_typed(from_), to, casting))


def _typed(value: Any) -> Any:
    return value.dtype if is_array(value) else value


def _triangle(function: Any) -> Callable[..., Any]:
    def call(arrays: Arrays, m: Any, k: int = 0) -> Any:
        source = as_array(arrays, m)
        if source.ndim < 2:
            raise unsupported(f"np.{function.__name__} of a vector")
        found = arrays.record(function, source.tensor, k)
        return source.new(layout.in_order(arrays.tape, found, layout.c_order(source.ndim)))

    return call


handler(np.tril)(_triangle(torch.tril))
handler(np.triu)(_triangle(torch.triu))


def _dispatched(function: Any) -> Substitute:
    return lambda machine, args, kwargs: call_numpy(arrays_of(machine), function, args, kwargs)


for _python in (np.ones, np.full, np.eye, np.identity, np.isscalar):
    substitute_for(_python)(_dispatched(_python))
handler(np.dot)(linear_algebra.dot)
handler(np.inner)(linear_algebra.inner)
handler(np.vdot)(linear_algebra.vdot)
handler(np.einsum)(linear_algebra.einsum)
