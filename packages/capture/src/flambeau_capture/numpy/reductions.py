"""Reductions and scans, as methods of arrays: sums, means, extrema and their places, with NumPy's
dtypes and memory orders. Order statistics, and reductions that skip nan (`nansum` and its kin).

NumPy computes the latter with branches on the data (is there any nan?) or in C. Here they are
sorts, selections and `where`s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import ArrayBase, as_array, cast, is_array, is_constant
from flambeau_capture.numpy.layout import handler, torch_dtype, unsupported
from flambeau_capture.numpy.ufuncs import call_ufunc, store

_CLIP: Any = np._core.umath.clip  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from flambeau_capture.numpy.arrays import Arrays

Method = Callable[..., Any]


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes to reduce, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = []
    for each in axis if isinstance(axis, (tuple, list)) else (axis,):
        place = int(each)
        if not -ndim <= place < ndim:
            if ndim == 0 and place in (0, -1):
                continue
            raise np.exceptions.AxisError(place, ndim)
        axes.append(place % ndim)
    if len(set(axes)) != len(axes):
        raise ValueError("duplicate value in 'axis'")
    return tuple(axes)


def _is_given(value: Any) -> bool:
    return value is not None and value is not np._NoValue


def _is_mask(where: Any) -> bool:
    return where is not True and where is not np._NoValue


# ---------------------------------------------------------------- methods that differ in a function


def _total(function: Any, ufunc: Any, identity: Any) -> Method:
    """`sum` or `prod`."""

    def total(
        self: Reductions, axis: Any = None, dtype: Any = None, out: Any = None,
        keepdims: Any = False, initial: Any = identity, where: Any = True,
    ) -> Any:  # fmt: skip
        kind, axes = self._accumulating(dtype), _axes(axis, self.ndim)
        source = self._masked(cast(self.arrays, self.tensor, kind), where, identity)
        found = self._over(function, source, axes, keepdims, dtype=torch_dtype(kind))
        if _is_given(initial) and not (type(initial) in (int, float) and initial == identity):
            operands = (self.new(found), initial)
            found = call_ufunc(self.arrays, ufunc, operands, {"dtype": kind}).tensor
        return self._reduced(found, axes, keepdims, out)

    return total


def _spread(*, root: bool) -> Method:
    """`var`, from deviations from the mean, or its `root`, `std`."""

    def spread(
        self: Reductions, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = False, *, where: Any = True, mean: Any = np._NoValue,
        correction: Any = np._NoValue,
    ) -> Any:  # fmt: skip
        ddof = correction if _is_given(correction) else ddof
        found, final = self._variance(axis, dtype, ddof, keepdims is True, where, mean)
        found = cast(self.arrays, self.call(torch.sqrt, found) if root else found, final)
        return self._reduced(found, _axes(axis, self.ndim), keepdims, out)

    return spread


def _extremum(name: str, function: Any) -> Method:
    """`max` or `min`, with nan where one is."""

    def extremum(
        self: Reductions, axis: Any = None, out: Any = None, keepdims: Any = False,
        initial: Any = None, where: Any = True,
    ) -> Any:  # fmt: skip
        axes = _axes(axis, self.ndim)
        if self.dtype.kind == "c":
            raise unsupported(f"the {name} of complex numbers")
        is_empty = any(self.base.shape[place] == 0 for place in axes)
        if is_empty and _is_given(initial):
            raise unsupported(f"the {name} of nothing, with initial=")
        if is_empty:
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
        if _is_mask(where) and not _is_given(initial):
            raise ValueError(
                f"reduction operation '{name}' does not have an identity, so to use a "
                f"where mask one has to specify 'initial'"
            )
        source = self._masked(self.tensor, where, initial)
        found = self._over(function, source, axes, keepdims)
        if _is_given(initial):
            operands = (self.new(found), initial)
            found = call_ufunc(self.arrays, getattr(np, name), operands, {}).tensor
        return self._reduced(found, axes, keepdims, out)

    return extremum


def _truth(function: Any, identity: bool) -> Method:
    """`any` or `all`."""

    def truth(
        self: Reductions, axis: Any = None, out: Any = None, keepdims: Any = False, *,
        where: Any = True,
    ) -> Any:  # fmt: skip
        axes = _axes(axis, self.ndim)
        source = self._masked(cast(self.arrays, self.tensor, np.bool_), where, identity)
        return self._reduced(self._over(function, source, axes, keepdims), axes, keepdims, out)

    return truth


def _place(function: Any) -> Method:
    """`argmax` or `argmin`: the place of the first such element."""

    def place(self: Reductions, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        if self.dtype.kind == "c":
            raise unsupported("places of extrema of complex numbers")
        axes = _axes(axis, self.ndim)
        if 0 in (self.base.shape if axis is None else (self.base.shape[axis],)):
            raise ValueError(f"attempt to get {function.__name__} of an empty sequence")
        source = self.tensor
        if source.dtype is torch.bool:
            source = cast(self.arrays, source, np.uint8)
        if axis is None:
            found = self.call(function, self.call("reshape", source, (-1,)), 0)
            if keepdims is True:
                found = self.call("reshape", found, (1,) * self.ndim)
        else:
            found = self.call(function, source, axis, keepdim=keepdims is True)
        return self._reduced(found, axes, keepdims, out, c_order=True)

    return place


def _scan(function: Any) -> Method:
    """`cumsum` or `cumprod`."""

    def scan(self: Reductions, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        source = self.ravel() if axis is None else self  # type: ignore[attr-defined]
        (place,) = _axes(0 if axis is None else axis, source.ndim)
        kind = self._accumulating(dtype)
        tensor = cast(self.arrays, source.tensor, kind)
        found = self.call(function, tensor, place, dtype=torch_dtype(kind))
        if out is not None:
            store(out, found)
            return out
        order = layout.k_order([source.base], source.ndim)
        return self.new(layout.in_order(self.tape, found, order))

    return scan


class Reductions(ArrayBase):
    """The methods of `Array` that reduce and scan."""

    __slots__ = ()

    sum, prod = _total(torch.sum, np.add, 0), _total(torch.prod, np.multiply, 1)
    var, std = _spread(root=False), _spread(root=True)
    max, min = _extremum("maximum", torch.amax), _extremum("minimum", torch.amin)
    any, all = _truth(torch.any, False), _truth(torch.all, True)
    argmax, argmin = _place(torch.argmax), _place(torch.argmin)
    cumsum, cumprod = _scan(torch.cumsum), _scan(torch.cumprod)

    def _over(
        self, function: Any, source: Any, axes: tuple[int, ...], keepdims: Any, **options: Any
    ) -> torch.Tensor:
        """A new tensor: the function over these axes, one by one if it takes only one."""
        keepdim = keepdims is True
        if not axes:
            return self.call(torch.clone, source)  # type: ignore[no-any-return]
        if function in (torch.sum, torch.amax, torch.amin):
            return self.call(function, source, axes, keepdim=keepdim, **options)  # type: ignore[no-any-return]
        for place in sorted(axes, reverse=True):
            source = self.call(function, source, place, keepdim=keepdim, **options)
        return source  # type: ignore[no-any-return]

    def _reduced(
        self, found: torch.Tensor, axes: tuple[int, ...], keepdims: Any, out: Any, *,
        c_order: bool = False,
    ) -> Any:  # fmt: skip
        """A reduction's outcome in NumPy's memory order, in `out` if one is given."""
        if isinstance(out, tuple):
            (out,) = out
        if out is not None:
            if not is_array(out):
                raise TypeError("output must be an array")
            store(out, found)
            return out
        if found.ndim > 1 and not c_order:
            order = layout.k_order([self.base], self.ndim)
            kept = [axis for axis in order if axis not in axes or keepdims is True]
            rank = {axis: at for at, axis in enumerate(sorted(kept))}
            found = layout.in_order(self.tape, found, tuple(rank[axis] for axis in kept))
        return self.new(found, scalar=found.ndim == 0)

    def _masked(self, tensor: torch.Tensor, where: Any, identity: Any) -> torch.Tensor:
        if not _is_mask(where):
            return tensor
        filler = self.arrays.full(identity, tensor.dtype)
        return self.call(torch.where, as_array(self.arrays, where).tensor, tensor, filler)  # type: ignore[no-any-return]

    def _accumulating(self, dtype: Any) -> Any:
        """The dtype in which integers are summed: 64 bits."""
        if dtype is not None:
            return np.dtype(dtype)
        kind, size = self.dtype.kind, self.dtype.itemsize
        if kind in "bi" and size < 8:
            return np.dtype(np.int64)
        return np.dtype(np.uint64) if kind == "u" else self.dtype

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *,
        where: Any = True,
    ) -> Any:  # fmt: skip
        """The mean over some axes: integers in float64, float16 in float32."""
        kind, final = self._averaging(dtype)
        axes = _axes(axis, self.ndim)
        total = self.sum(axis, kind, None, keepdims, 0, where).tensor
        found = self.call(torch.div, total, self._count(axes, where, keepdims is True, kind))
        return self._reduced(cast(self.arrays, found, final), axes, keepdims, out)

    def _averaging(self, dtype: Any) -> tuple[Any, Any]:
        """The dtype to compute an average in, and that of the result."""
        if dtype is not None:
            return np.dtype(dtype), np.dtype(dtype)
        if self.dtype.kind in "biu":
            return np.dtype(np.float64), np.dtype(np.float64)
        return np.dtype(np.float32) if self.dtype == np.float16 else self.dtype, self.dtype

    def _count(
        self, axes: tuple[int, ...], where: Any, keepdims: bool, kind: Any, ddof: Any = 0
    ) -> Any:
        """The number of elements that each average is over; 0 gives nan, as in NumPy."""
        if _is_mask(where):
            mask = as_array(self.arrays, where).tensor
            mask = self.call(torch.broadcast_to, mask, tuple(self.base.shape))
            found = self.call(torch.sum, mask, axes, keepdim=keepdims)
            found = self.call(torch.clamp, self.call(torch.sub, found, ddof), 0)
        else:
            count: Any = math.prod(self.base.shape[axis] for axis in axes)
            if type(count) is int:
                count = max(count - ddof, 0)
            elif ddof:
                count = torch.sym_max(count - ddof, 0)
            found = self.arrays.full(count, torch.float64)
        return cast(self.arrays, found, kind)

    def _variance(
        self, axis: Any, dtype: Any, ddof: Any, keepdims: bool, where: Any, mean: Any
    ) -> tuple[torch.Tensor, Any]:
        kind, final = self._averaging(dtype)
        axes = _axes(axis, self.ndim)
        source = cast(self.arrays, self.tensor, kind)
        if _is_given(mean):
            middle = as_array(self.arrays, mean).tensor
        else:
            array = self.new(source)
            middle = array.mean(axes if self.ndim else None, keepdims=True, where=where).tensor
        deviation = self.call(torch.sub, source, middle)
        if source.dtype.is_complex:
            squared = self.call(torch.square, self.call(torch.abs, deviation))
            kind = final = np.dtype(np.float32 if kind == np.complex64 else np.float64)
        else:
            squared = self.call(torch.mul, deviation, deviation)
        total = self._masked(squared, where, 0)
        if axes:
            total = self.call(torch.sum, total, axes, keepdim=keepdims)
        return self.call(torch.div, total, self._count(axes, where, keepdims, kind, ddof)), final

    def ptp(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        """The greatest element less the least."""
        if out is not None:
            raise unsupported("ptp with out=")
        return self.max(axis, keepdims=keepdims) - self.min(axis, keepdims=keepdims)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Any:
        """The elements brought between two bounds."""
        if min is None and max is None:
            return call_ufunc(self.arrays, np.positive, (self,), {"out": out})
        ufunc = np.maximum if max is None else np.minimum if min is None else _CLIP
        operands = (self, *(bound for bound in (min, max) if bound is not None))
        return call_ufunc(self.arrays, ufunc, operands, {"out": out, **options})

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        """To a number of decimals, half to even; NumPy scales, rounds and scales back."""
        kind = self.dtype.kind
        if kind == "b" and decimals >= 0:
            raise unsupported("booleans are rounded")
        if kind in "iu" and decimals >= 0:
            return call_ufunc(self.arrays, np.positive, (self,), {"out": out})
        if kind in "ciu":
            raise unsupported(f"{self.dtype} is rounded to {decimals} decimals")
        if decimals == 0:
            return call_ufunc(self.arrays, np.rint, (self,), {"out": out})
        scale = 10.0 ** abs(decimals)
        first, last = (np.multiply, np.divide) if decimals > 0 else (np.divide, np.multiply)
        found = call_ufunc(self.arrays, first, (self, scale), {})
        found = call_ufunc(self.arrays, np.rint, (found,), {})
        return call_ufunc(self.arrays, last, (found, scale), {"out": out})


# ---------------------------------------------------------------- order statistics


def _sorted_along(array: Any, axis: Any) -> tuple[torch.Tensor, int]:
    """The sorted elements along one axis (None: all), which is moved last, and their number."""
    if axis is None:
        array, axis = array.ravel(), 0
    if isinstance(axis, tuple) or array.dtype.kind == "c":
        raise unsupported("order statistics along several axes, or of complex numbers")
    kind = np.float64 if array.dtype.kind in "biu" else array.dtype
    moved = array.call(torch.movedim, cast(array.arrays, array.tensor, kind), axis, -1)
    found = array.call(torch.sort, moved, dim=-1)[0]
    size = int(found.shape[-1])
    if size == 0:
        raise unsupported("order statistics of nothing")
    return found, size


def _unless_nan(array: Any, found: torch.Tensor, ascending: torch.Tensor) -> torch.Tensor:
    """nan where the greatest element is."""
    last = array.call(torch.select, ascending, -1, -1)
    test = array.call(torch.isnan, last)
    result: torch.Tensor = array.call(torch.where, test, last, found)
    return result


def _kept(array: Any, found: torch.Tensor, axis: Any, keepdims: Any) -> Any:
    if keepdims is True:
        shape = (
            (1,) * array.ndim
            if axis is None
            else tuple(
                1 if at == axis % array.ndim else size for at, size in enumerate(array.shape)
            )
        )
        found = array.call("reshape", found, shape)
    if axis is not None:
        return array._reduced(found, (axis % array.ndim,), keepdims, None)
    return array.new(found, scalar=found.ndim == 0)


@handler(np.median)
def _median(
    arrays: Arrays, a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    keepdims: Any = False,
) -> Any:  # fmt: skip
    if out is not None or overwrite_input:
        raise unsupported("np.median with out= or overwrite_input=")
    array = as_array(arrays, a)
    ascending, size = _sorted_along(array, axis)
    low, high = (array.call(torch.select, ascending, -1, at) for at in ((size - 1) // 2, size // 2))
    found = low if size % 2 else array.call(torch.div, array.call(torch.add, low, high), 2)
    return _kept(array, _unless_nan(array, found, ascending), axis, keepdims)


def _quantile_of(
    arrays: Arrays, a: Any, q: Any, axis: Any, keepdims: Any, options: dict[str, Any]
) -> Any:
    if not is_constant(q) or any(
        value not in (None, False, "linear", np._NoValue) for value in options.values()
    ):
        raise unsupported("quantiles that are not constant, or with options")
    array = as_array(arrays, a)
    if array.dtype.kind == "b":
        np.subtract(np.True_, np.True_)  # raises NumPy's TypeError, as interpolation does
    wanted = np.asarray(q, np.float64)
    if wanted.ndim > 1 or not ((wanted >= 0) & (wanted <= 1)).all():
        raise unsupported("quantiles that are no vector of numbers in their range")
    ascending, size = _sorted_along(array, axis)
    parts = [
        _kept(array, _unless_nan(array, found, ascending), axis, keepdims)
        for found in (_lerp(array, ascending, size, float(at)) for at in wanted.reshape(-1))
    ]
    return as_array(arrays, parts) if wanted.ndim else parts[0]


def _lerp(array: Any, ascending: torch.Tensor, size: int, quantile: float) -> torch.Tensor:
    """Between two neighbours, computed from the nearer one."""
    place = quantile * (size - 1)
    below = min(int(np.floor(place)), size - 1)
    low = array.call(torch.select, ascending, -1, below)
    high = array.call(torch.select, ascending, -1, min(below + 1, size - 1))
    part = place - below
    step = array.call(torch.sub, high, low)
    if part >= 0.5:
        return array.call(torch.sub, high, array.call(torch.mul, step, 1 - part))  # type: ignore[no-any-return]
    return array.call(torch.add, low, array.call(torch.mul, step, part))  # type: ignore[no-any-return]


@handler(np.quantile)
def _quantile(
    arrays: Arrays, a: Any, q: Any, axis: Any = None, *, keepdims: Any = False, **options: Any
) -> Any:
    return _quantile_of(arrays, a, q, axis, keepdims, options)


@handler(np.percentile)
def _percentile(
    arrays: Arrays, a: Any, q: Any, axis: Any = None, *, keepdims: Any = False, **options: Any
) -> Any:
    if not is_constant(q):
        raise unsupported("percentiles that are not constant")
    return _quantile_of(arrays, a, np.true_divide(q, 100.0).tolist(), axis, keepdims, options)


# ---------------------------------------------------------------- reductions that skip nan


def _nan_free(arrays: Arrays, a: Any, filler: float) -> tuple[Any, Any]:
    """The array with nan replaced, and where it was (None for dtypes without)."""
    array = as_array(arrays, a)
    if array.dtype.kind not in "fc":
        return array, None
    absent = array.new(array.call(torch.isnan, array.tensor))
    value = arrays.full(filler, array.base.dtype)
    filled = array.call(torch.where, absent.tensor, value, array.tensor)
    return array.new(layout.in_order(array.tape, filled, layout.copied("K", array.base))), absent


def _skipping(name: str, filler: float) -> Callable[..., Any]:
    def call(arrays: Arrays, a: Any, *args: Any, **kwargs: Any) -> Any:
        filled, _ = _nan_free(arrays, a, filler)
        return getattr(filled, name)(*args, **kwargs)

    return call


for _function, _name, _filler in (
    (np.nansum, "sum", 0), (np.nanprod, "prod", 1), (np.nancumsum, "cumsum", 0),
    (np.nancumprod, "cumprod", 1),
):  # fmt: skip
    handler(_function)(_skipping(_name, _filler))


def _without_nan(arrays: Arrays, a: Any) -> tuple[Any, Any]:
    """The array with nan as 0, and `where=` of the others."""
    filled, absent = _nan_free(arrays, a, 0)
    if absent is None:
        return filled, True
    return filled, absent.new(absent.call(torch.logical_not, absent.tensor))


@handler(np.nanmean)
def _nanmean(
    arrays: Arrays, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    keepdims: Any = False, *, where: Any = True,
) -> Any:  # fmt: skip
    if where is not True:
        raise unsupported("np.nanmean with where=")
    filled, present = _without_nan(arrays, a)
    return filled.mean(axis, dtype, out, keepdims, where=present)


def _nan_spread(method: str) -> Callable[..., Any]:
    def call(
        arrays: Arrays, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
        ddof: Any = 0, keepdims: Any = False, **options: Any,
    ) -> Any:  # fmt: skip
        if options:
            raise unsupported(f"np.nan{method} with {', '.join(options)}")
        filled, present = _without_nan(arrays, a)
        return getattr(filled, method)(axis, dtype, out, ddof, keepdims, where=present)

    return call


handler(np.nanvar)(_nan_spread("var"))
handler(np.nanstd)(_nan_spread("std"))


def _nan_extremum(method: str, filler: float) -> Callable[..., Any]:
    def call(
        arrays: Arrays,
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        **options: Any,
    ) -> Any:
        if options or out is not None:
            raise unsupported(f"np.nan{method} with out=, initial= or where=")
        filled, absent = _nan_free(arrays, a, filler)
        found = getattr(filled, method)(axis, keepdims=keepdims)
        if absent is None:
            return found
        nothing = absent.all(axis, keepdims=keepdims)
        value = found.call(torch.where, nothing.tensor, float("nan"), found.tensor)
        return found.new(cast(arrays, value, found.dtype), scalar=found.scalar)

    return call


handler(np.nanmax)(_nan_extremum("max", -np.inf))
handler(np.nanmin)(_nan_extremum("min", np.inf))
