"""NumPy's functions: those that have a form of their own here, those that are methods of arrays, and those written in Python.

What is not listed and is written in Python (`np.pad`, `np.linalg.norm`, `np.tile`, ...) is interpreted, down to the functions listed here; what
is written in C and not listed breaks the graph.  A function of constants only is called, and an array it returns is made anew by the graph.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays import layout, products
from flambeau_capture.interpreter.arrays.base import (
    SYMBOLIC,
    ArrayBase,
    as_array,
    cast,
    constant,
    is_constant,
    plain,
)
from flambeau_capture.interpreter.arrays.converters import ArrayConverter, ErrorState, broadcast_of
from flambeau_capture.interpreter.arrays.dtypes import torch_dtype
from flambeau_capture.interpreter.arrays.ufuncs import (
    call_ufunc,
    call_ufunc_method,
    check_broadcast,
    store,
)
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

HANDLERS: dict[int, Callable[..., Any]] = {}
"""By id of the NumPy function; they take the machine and the call's arguments."""

_METHODS = (
    "sum", "prod", "max", "min", "amax", "amin", "any", "all", "mean", "std", "var", "argmax", "argmin", "cumsum", "cumprod", "ptp",
    "round", "around", "reshape", "ravel", "transpose", "swapaxes", "squeeze", "take", "repeat", "diagonal", "trace", "argsort",
    "searchsorted", "nonzero", "permute_dims", "matrix_transpose",
)  # fmt: skip
_NAMED = {
    "amax": "max",
    "amin": "min",
    "around": "round",
    "permute_dims": "transpose",
    "matrix_transpose": "mT",
}
_WITH_EFFECTS = frozenset({"save", "savez", "savez_compressed", "savetxt", "load", "loadtxt", "genfromtxt", "array2string", "array_str",
                           "array_repr", "fromregex"})  # fmt: skip


def handler(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            if id(function) in HANDLERS:
                raise ValueError(f"{function!r} has two handlers")
            HANDLERS[id(function)] = handler
            inner = getattr(function, "_implementation", None)
            if isinstance(
                inner, types.BuiltinFunctionType
            ):  # what NumPy's own code calls past the dispatch
                HANDLERS[id(inner)] = handler
        return handler

    return declare


def call_numpy(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of something of NumPy's that is not plain Python."""
    if isinstance(function, np.ufunc):
        return call_ufunc(machine, function, args, kwargs)
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, np.ufunc):
        return call_ufunc_method(machine, receiver, function.__name__, args, kwargs)
    if isinstance(function, type):
        return _construct(machine, function, args, kwargs)
    if isinstance(receiver, (np.generic, np.dtype)) and is_constant(args) and is_constant(kwargs):
        return made_anew(machine, function(*args, **kwargs))
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    if module.startswith("numpy.random") or type(receiver).__module__.startswith("numpy.random"):
        raise GraphBreak("numpy-random", f"call of numpy.random.{name}")
    if name in _WITH_EFFECTS:
        raise GraphBreak("side-effect", f"call of numpy.{name}")
    handler = HANDLERS.get(id(function))
    if _may_call(function, handler) and is_constant(args) and is_constant(kwargs):
        return made_anew(machine, function(*args, **kwargs))
    if handler is not None:
        return handler(machine, *args, **kwargs)
    python = getattr(function, "_implementation", None)
    if type(python) is types.FunctionType:
        return machine.interpret(python, args, kwargs)
    raise GraphBreak(
        "numpy-unsupported", f"call of {getattr(function, '__module__', None) or 'numpy'}.{name}"
    )


def call_python(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A function of NumPy's written in Python: of constants only it is called, if it is public; NotImplemented to have it interpreted."""
    name = function.__name__
    if (
        vars(np).get(name, machine) is not function
        or name in _WITH_EFFECTS
        or name.startswith(("set", "show"))
    ):
        return NotImplemented
    if not (is_constant(args) and is_constant(kwargs)):
        return NotImplemented
    return made_anew(machine, function(*args, **kwargs))


def _may_call(function: Any, handler: Any) -> bool:
    """Whether a function of constants may be called at capture: NumPy's public functions read nothing else."""
    return (
        (handler is not None and handler not in _MAKERS)
        or hasattr(function, "_implementation")
        or id(function) in _PURE
    )


_multiarray = np._core.multiarray  # type: ignore[attr-defined]
_array_converter = getattr(np._core._multiarray_umath, "_array_converter", None)  # type: ignore[attr-defined]
_PURE = {
    id(function)
    for function in (
        np.promote_types,
        np.datetime_data,
        np.lib.array_utils.normalize_axis_index,
        np.bincount,
        *(
            getattr(_multiarray, name, None)
            for name in (
                "interp",
                "correlate",
                "_monotonicity",
                "count_nonzero",
                "get_handler_name",
            )
        ),
    )
}
"""Functions written in C that read their arguments only."""


def made_anew(machine: Machine, found: Any) -> Any:
    """What NumPy computed from constants."""
    if isinstance(found, np.ndarray):
        return constant(machine, found)
    if isinstance(found, (tuple, list)):
        items = [made_anew(machine, item) for item in found]
        return (
            items
            if type(found) is list
            else tuple(items)
            if type(found) is tuple
            else type(found)(*items)
        )
    return found


def _construct(machine: Machine, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`np.float32(x)`, `np.dtype(...)`, `np.finfo(...)`."""
    if is_constant(args) and is_constant(kwargs):
        if issubclass(cls, (np.generic, np.dtype)) or cls in (np.finfo, np.iinfo):
            return made_anew(machine, cls(*args, **kwargs))
        if cls is np.broadcast:
            return np.broadcast(*args)
        if cls is np.errstate and "raise" not in kwargs.values() and "call" not in kwargs.values():
            return ErrorState(machine)
    elif issubclass(cls, np.generic) and len(args) == 1 and not kwargs:
        found = as_array(machine, args[0], cls)
        return found.new(found.base, scalar=found.ndim == 0)
    if cls is np.broadcast:
        return broadcast_of(args)
    if cls is _array_converter:
        return ArrayConverter(machine, args)
    if not issubclass(cls, (np.generic, np.dtype, np.ndarray)) and cls not in (
        np.finfo,
        np.iinfo,
        np.errstate,
    ):
        return NotImplemented
    raise GraphBreak("numpy-unsupported", f"a {cls.__module__}.{cls.__qualname__} is made")


# ---------------------------------------------------------------- making arrays


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


@handler(np.array)
def _array(
    machine: Machine, object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K", subok: Any = False, ndmin: int = 0, like: Any = None
) -> Any:  # fmt: skip
    found = _with_copy(machine, object, dtype, order, copy)
    if found.ndim < ndmin:
        found = found.reshape((1,) * (ndmin - found.ndim) + found.shape)
    return found


@handler(np.asarray, np.asanyarray)
def _asarray(
    machine: Machine, a: Any, dtype: Any = None, order: Any = None, *, device: Any = None, copy: Any = None, like: Any = None
) -> Any:  # fmt: skip
    return _with_copy(machine, a, dtype, order, copy)


@handler(np.ascontiguousarray)
def _ascontiguousarray(machine: Machine, a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    found = _with_copy(machine, a, dtype, "C", None)
    return found if found.ndim else found.reshape((1,))


@handler(np.asfortranarray)
def _asfortranarray(machine: Machine, a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    found = _with_copy(machine, a, dtype, "F", None)
    return found if found.ndim else found.reshape((1,))


@handler(np.copy)
def _copy(machine: Machine, a: Any, order: Any = "K", subok: Any = False) -> Any:
    found = as_array(machine, a)
    return found.new(found.base, flips=found.flips).copy(order)


def _shape(machine: Machine, shape: Any) -> tuple[Any, ...]:
    sizes = plain(machine, shape)
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)


def _made(machine: Machine, function: Any, shape: Any, dtype: Any, order: Any, *value: Any) -> Any:
    sizes = _shape(machine, shape)
    fortran = order == "F" and len(sizes) > 1
    options = {"dtype": torch_dtype(dtype), "device": machine.arrays.device}
    sizes = tuple(reversed(sizes)) if fortran else sizes
    found = machine.arrays.new(machine.tape.call_function(function, (sizes, *value), options))
    return found.transpose() if fortran else found


@handler(np.zeros)
def _zeros(
    machine: Machine,
    shape: Any,
    dtype: Any = float,
    order: Any = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Any:
    return _made(machine, torch.zeros, shape, dtype or float, order)


@handler(np.ones)
def _ones(
    machine: Machine,
    shape: Any,
    dtype: Any = None,
    order: Any = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Any:
    return _made(machine, torch.ones, shape, dtype or float, order)


@handler(np.empty)
def _empty(
    machine: Machine,
    shape: Any,
    dtype: Any = float,
    order: Any = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Any:
    return _made(machine, torch.empty, shape, dtype or float, order)


@handler(np.full)
def _full(
    machine: Machine, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, device: Any = None, like: Any = None
) -> Any:  # fmt: skip
    kind = as_array(machine, fill_value).dtype if dtype is None else np.dtype(dtype)
    found = _made(machine, torch.empty, shape, kind, order)
    found[...] = fill_value
    return found


_MAKERS = (
    _array,
    _asarray,
    _ascontiguousarray,
    _asfortranarray,
    _copy,
    _zeros,
    _ones,
    _empty,
    _full,
)
"""Handlers that do for constants, too: what they make is made by the graph."""


def _like(machine: Machine, function: Any, a: Any, dtype: Any, order: Any, shape: Any) -> Any:
    source = as_array(machine, a)
    kind = source.dtype if dtype is None else dtype
    sizes = source.shape if shape is None else _shape(machine, shape)
    wanted = layout.copied(order, source.base)
    if len(sizes) != source.ndim:
        wanted = layout.c_order(len(sizes))
    found = _made(machine, function, tuple(sizes[axis] for axis in wanted), kind, "C")
    return (
        found.transpose(layout.inverse(wanted)) if wanted != layout.c_order(len(sizes)) else found
    )


@handler(np.zeros_like)
def _zeros_like(
    machine: Machine, a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None
) -> Any:  # fmt: skip
    return _like(machine, torch.zeros, a, dtype, order, shape)


@handler(np.ones_like)
def _ones_like(
    machine: Machine, a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None
) -> Any:  # fmt: skip
    return _like(machine, torch.ones, a, dtype, order, shape)


@handler(np.empty_like)
def _empty_like(
    machine: Machine, prototype: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None
) -> Any:  # fmt: skip
    return _like(machine, torch.empty, prototype, dtype, order, shape)


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


# ---------------------------------------------------------------- methods as functions


def _as_method(name: str) -> Callable[..., Any]:
    def call(machine: Machine, a: Any, *args: Any, **kwargs: Any) -> Any:
        array = as_array(machine, a)
        if issubclass(type(a), ArrayBase) and a.scalar:
            array = array.new(array.base)
        found = getattr(array, name)
        return found(*args, **kwargs) if callable(found) else found

    return call


for _name in _METHODS:
    if hasattr(np, _name) and id(getattr(np, _name)) not in HANDLERS:
        handler(getattr(np, _name))(_as_method(_NAMED.get(_name, _name)))


@handler(np.clip)
def _clip(
    machine: Machine, a: Any, a_min: Any = np._NoValue, a_max: Any = np._NoValue, out: Any = None, *, min: Any = np._NoValue,
    max: Any = np._NoValue, **options: Any,
) -> Any:  # fmt: skip
    low, high = (
        next((given for given in pair if given is not np._NoValue), None)
        for pair in ((a_min, min), (a_max, max))
    )
    return as_array(machine, a).clip(low, high, out, **options)


@handler(np.sort)
def _sort(
    machine: Machine,
    a: Any,
    axis: Any = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: Any = None,
) -> Any:
    found = as_array(machine, a)
    found = found.flatten() if axis is None else found.copy("K")
    found.sort(-1 if axis is None else axis, kind, order)
    return found


@handler(np.shape)
def _shape_of(machine: Machine, a: Any) -> Any:
    return as_array(machine, a).shape


@handler(np.ndim)
def _ndim_of(machine: Machine, a: Any) -> Any:
    return as_array(machine, a).ndim


@handler(np.iscomplexobj)
def _iscomplexobj(machine: Machine, x: Any) -> bool:
    return bool(as_array(machine, x).dtype.kind == "c")


@handler(np.isrealobj)
def _isrealobj(machine: Machine, x: Any) -> bool:
    return not _iscomplexobj(machine, x)


@handler(np.isscalar)
def _isscalar(machine: Machine, element: Any) -> bool:
    return type(element) in SYMBOLIC or (issubclass(type(element), ArrayBase) and element.scalar)


@handler(np.count_nonzero, _multiarray.count_nonzero)
def _count_nonzero(machine: Machine, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    return as_array(machine, a).astype(np.bool_).sum(axis, keepdims=keepdims)


@handler(np.diag)
def _diag(machine: Machine, v: Any, k: int = 0) -> Any:
    source = as_array(machine, v)
    if source.ndim == 1:
        return machine.arrays.new(machine.tape.call_function(torch.diag, (source.tensor, k)))
    if source.ndim != 2:
        raise ValueError("Input must be 1- or 2-d.")
    return source.diagonal(k)


@handler(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(
    machine: Machine, x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:  # fmt: skip
    source = as_array(machine, x)
    sizes = _shape(machine, window_shape)
    axes = range(source.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if len(sizes) != len(axes):
        raise ValueError("window_shape and axis must have the same length")
    found = source.unflipped("sliding_window_view")
    for size, place in zip(sizes, axes, strict=True):
        if found.shape[place] < size:
            raise ValueError("window shape cannot be larger than input array shape")
        found = machine.tape.call_method("unfold", (found, place % source.ndim, size, 1))
    return source.new(found, writeable=writeable and source.writeable)


@handler(np.isclose)
def _isclose(
    machine: Machine, a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Any:
    left, right = as_array(machine, a), as_array(machine, b)
    kind = np.result_type(left.dtype, right.dtype, 1.0)
    x, y = (cast(machine, array.tensor, kind) for array in (left, right))
    call = machine.tape.call_function
    limit = call(torch.add, (call(torch.mul, (call(torch.abs, (y,)), rtol)), atol))
    near = call(torch.le, (call(torch.abs, (call(torch.sub, (x, y)),)), limit))
    near = call(torch.logical_and, (near, call(torch.isfinite, (y,))))
    found = call(torch.logical_or, (near, call(torch.eq, (x, y))))
    if equal_nan:
        both = call(torch.logical_and, (call(torch.isnan, (x,)), call(torch.isnan, (y,))))
        found = call(torch.logical_or, (found, both))
    return machine.arrays.new(found, scalar=found.ndim == 0)


@handler(np.result_type)
def _result_type(machine: Machine, *values: Any) -> Any:
    return np.result_type(*[_typed(value) for value in values])


@handler(np.can_cast)
def _can_cast(machine: Machine, from_: Any, to: Any, casting: Any = "safe") -> bool:
    return bool(np.can_cast(_typed(from_), to, casting))


def _typed(value: Any) -> Any:
    return value.dtype if issubclass(type(value), ArrayBase) else value


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
        torch.broadcast_to, (source.unflipped("np.broadcast_to"), _shape(machine, shape))
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
    from flambeau_capture.interpreter.arrays.indexing import assigned

    if issubclass(type(src), ArrayBase) and not np.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(
            f"Cannot cast array data from {src.dtype!r} to {dst.dtype!r} according to the rule '{casting}'"
        )
    value = assigned(machine, src, dst.dtype)
    if where is not True:
        mask = as_array(machine, where).tensor
        value = machine.tape.call_function(torch.where, (mask, value, dst.tensor))
    dst.write(value)


@handler(np.tril)
def _tril(machine: Machine, m: Any, k: int = 0) -> Any:
    return _triangle(machine, torch.tril, m, k)


@handler(np.triu)
def _triu(machine: Machine, m: Any, k: int = 0) -> Any:
    return _triangle(machine, torch.triu, m, k)


def _triangle(machine: Machine, function: Any, m: Any, k: int) -> Any:
    source = as_array(machine, m)
    if source.ndim < 2:
        raise GraphBreak("numpy-unsupported", f"np.{function.__name__} of a vector")
    found = machine.tape.call_function(function, (source.tensor, k))
    return source.new(layout.in_order(machine.tape, found, layout.c_order(source.ndim)))


for _python in (np.ones, np.full, np.eye, np.identity, np.isscalar):
    substitute_for(_python)(
        functools.partial(
            lambda function, machine, args, kwargs: call_numpy(machine, function, args, kwargs),
            _python,
        )
    )
handler(np.dot)(products.dot)
handler(np.inner)(products.inner)
handler(np.vdot)(products.vdot)
handler(np.einsum)(products.einsum)
