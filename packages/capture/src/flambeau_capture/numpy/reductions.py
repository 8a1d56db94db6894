"""Reductions and scans, as methods of arrays: sums, means, extrema and their places, with NumPy's
dtypes and memory orders. Order statistics, and reductions that skip nan (`nansum` and its kin).

NumPy computes the latter with branches on the data (is there any nan?) or in C. Here they are
sorts, selections and `where`s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import ArrayBase, arrays_of, as_array, cast, is_constant
from flambeau_capture.numpy.layout import handler, torch_dtype
from flambeau_capture.numpy.ufuncs import call_ufunc, store
from flambeau_capture.reasons import GraphBreak

_CLIP: Any = np._core.umath.clip  # type: ignore[attr-defined]
_GIVEN_NO_VALUE = (np._NoValue, None)

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine

    _Base = ArrayBase
else:
    _Base = object


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes to reduce, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    found = []
    for each in given:
        place = int(each)
        if not -ndim <= place < ndim:
            if ndim == 0 and place in (0, -1):
                continue
            raise np.exceptions.AxisError(place, ndim)
        found.append(place % ndim)
    if len(set(found)) != len(found):
        raise ValueError("duplicate value in 'axis'")
    return tuple(found)


def _is_given(value: Any) -> bool:
    return not any(value is none for none in _GIVEN_NO_VALUE)


class Reductions(_Base):
    """Mixin of `Array`."""

    __slots__ = ()

    def _reduced(
        self,
        found: torch.Tensor,
        axes: tuple[int, ...],
        keepdims: Any,
        out: Any,
        *,
        c_order: bool = False,
    ) -> Any:
        """A reduction's outcome in NumPy's memory order, in `out` if one is given."""
        if isinstance(out, tuple):
            (out,) = out
        if out is not None:
            if not issubclass(type(out), ArrayBase):
                raise TypeError("output must be an array")
            store(out, found)
            return out
        if found.ndim > 1 and not c_order:
            kept = [
                axis
                for axis in layout.k_order([self.base], self.ndim)
                if axis not in axes or keepdims is True
            ]
            rank = {axis: at for at, axis in enumerate(sorted(kept))}
            found = layout.in_order(self.tape, found, tuple(rank[axis] for axis in kept))
        return self.new(found, scalar=found.ndim == 0)

    def _masked(self, tensor: torch.Tensor, where: Any, identity: Any) -> torch.Tensor:
        if where is True or where is np._NoValue:
            return tensor
        mask = as_array(self.machine, where).tensor
        filler = self.call(
            torch.full, (), identity, dtype=tensor.dtype, device=arrays_of(self.machine).device
        )
        found: torch.Tensor = self.call(torch.where, mask, tensor, filler)
        return found

    def _accumulating(self, dtype: Any) -> Any:
        """The dtype in which integers are summed: 64 bits."""
        if dtype is not None:
            return np.dtype(dtype)
        kind, size = self.dtype.kind, self.dtype.itemsize
        if kind in "bi" and size < 8:
            return np.dtype(np.int64)
        return np.dtype(np.uint64) if kind == "u" else self.dtype

    # ------------------------------------------------------------ sums and products

    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
        initial: Any = 0, where: Any = True,
    ) -> Any:  # fmt: skip
        """The sum over some axes."""
        return self._fold(torch.sum, np.add, 0, axis, dtype, out, keepdims, initial, where)

    def prod(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
        initial: Any = 1, where: Any = True,
    ) -> Any:  # fmt: skip
        """The product over some axes."""
        return self._fold(torch.prod, np.multiply, 1, axis, dtype, out, keepdims, initial, where)

    def _fold(
        self, function: Any, ufunc: Any, identity: Any, axis: Any, dtype: Any, out: Any,
        keepdims: Any, initial: Any, where: Any,
    ) -> Any:  # fmt: skip
        keepdims = keepdims is True
        axes = _axes(axis, self.ndim)
        kind = torch_dtype(self._accumulating(dtype))
        source = self._masked(
            cast(self.machine, self.tensor, self._accumulating(dtype)), where, identity
        )
        if function is torch.sum:
            found = (
                self.call(torch.sum, source, axes, keepdim=keepdims, dtype=kind) if axes else source
            )
        else:
            found = source
            for place in sorted(axes, reverse=True):
                found = self.call(torch.prod, found, place, keepdim=keepdims, dtype=kind)
        if found is source:
            found = self.call(torch.clone, found)
        if _is_given(initial) and not (type(initial) in (int, float) and initial == identity):
            found = call_ufunc(
                self.machine,
                ufunc,
                (self.new(found), initial),
                {"dtype": self._accumulating(dtype)},
            ).tensor
        return self._reduced(found, axes, keepdims, out)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *,
        where: Any = True,
    ) -> Any:  # fmt: skip
        """The mean over some axes: integers in float64, halves in float32."""
        kind, final = self._averaging(dtype)
        keepdims = keepdims is True
        count = self._count(_axes(axis, self.ndim), where, keepdims, kind)
        total = self._fold(torch.sum, np.add, 0, axis, kind, None, keepdims, 0, where)
        found = self.call(torch.div, total.tensor, count)
        return self._reduced(
            cast(self.machine, found, final), _axes(axis, self.ndim), keepdims, out
        )

    def _averaging(self, dtype: Any) -> tuple[Any, Any]:
        """The dtype to compute an average in, and that of the result."""
        if dtype is not None:
            return np.dtype(dtype), np.dtype(dtype)
        if self.dtype.kind in "biu":
            return np.dtype(np.float64), np.dtype(np.float64)
        if self.dtype == np.float16:
            return np.dtype(np.float32), self.dtype
        return self.dtype, self.dtype

    def _count(
        self, axes: tuple[int, ...], where: Any, keepdims: bool, kind: Any, ddof: Any = 0
    ) -> Any:
        """The number of elements that each average is over; 0 gives nan, as in NumPy."""
        if where is not True and where is not np._NoValue:
            mask = as_array(self.machine, where).tensor
            mask = self.call(torch.broadcast_to, mask, tuple(self.base.shape))
            found = self.call(torch.sum, mask, axes, keepdim=keepdims)
            found = self.call(torch.clamp, self.call(torch.sub, found, ddof), 0)
        else:
            count: Any = 1
            for axis in axes:
                count = count * self.base.shape[axis]
            if type(count) is int:
                count = max(count - ddof, 0)
            else:
                count = torch.sym_max(count - ddof, 0) if ddof else count
            found = self.call(
                torch.full, (), count, dtype=torch.float64, device=arrays_of(self.machine).device
            )
        return cast(self.machine, found, kind)

    def var(
        self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = False, *, where: Any = True, mean: Any = np._NoValue,
        correction: Any = np._NoValue,
    ) -> Any:  # fmt: skip
        """The variance over some axes, from deviations from the mean."""
        ddof = correction if _is_given(correction) else ddof
        found, final = self._variance(axis, dtype, ddof, keepdims is True, where, mean)
        return self._reduced(
            cast(self.machine, found, final), _axes(axis, self.ndim), keepdims, out
        )

    def std(
        self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = False, *, where: Any = True, mean: Any = np._NoValue,
        correction: Any = np._NoValue,
    ) -> Any:  # fmt: skip
        """The standard deviation over some axes."""
        ddof = correction if _is_given(correction) else ddof
        found, final = self._variance(axis, dtype, ddof, keepdims is True, where, mean)
        found = cast(self.machine, self.call(torch.sqrt, found), final)
        return self._reduced(found, _axes(axis, self.ndim), keepdims, out)

    def _variance(
        self, axis: Any, dtype: Any, ddof: Any, keepdims: bool, where: Any, mean: Any
    ) -> tuple[torch.Tensor, Any]:
        kind, final = self._averaging(dtype)
        axes = _axes(axis, self.ndim)
        source = cast(self.machine, self.tensor, kind)
        if _is_given(mean):
            middle = as_array(self.machine, mean).tensor
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

    # ------------------------------------------------------------ extrema and truth

    def max(
        self,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        """The greatest element along some axes; nan where one is."""
        return self._extremum("maximum", torch.amax, axis, out, keepdims, initial, where)

    def min(
        self,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        """The least element along some axes; nan where one is."""
        return self._extremum("minimum", torch.amin, axis, out, keepdims, initial, where)

    def _extremum(
        self, name: str, function: Any, axis: Any, out: Any, keepdims: Any, initial: Any, where: Any
    ) -> Any:
        axes, keepdims = _axes(axis, self.ndim), keepdims is True
        if self.dtype.kind == "c":
            raise GraphBreak("numpy-unsupported", f"the {name} of complex numbers")
        if not _is_given(initial):
            if any(self.base.shape[place] == 0 for place in axes):
                raise ValueError(
                    f"zero-size array to reduction operation {name} which has no identity"
                )
            if where is not True and where is not np._NoValue:
                raise ValueError(
                    f"reduction operation '{name}' does not have an identity, so to use a "
                    f"where mask one has to specify 'initial'"
                )
        elif any(self.base.shape[place] == 0 for place in axes):
            raise GraphBreak("numpy-unsupported", f"the {name} of nothing, with initial=")
        source = self._masked(self.tensor, where, initial)
        found = (
            self.call(function, source, axes, keepdim=keepdims)
            if axes
            else self.call(torch.clone, source)
        )
        if _is_given(initial):
            found = call_ufunc(
                self.machine, getattr(np, name), (self.new(found), initial), {}
            ).tensor
        return self._reduced(found, axes, keepdims, out)

    def ptp(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        """The greatest element less the least."""
        if out is not None:
            raise GraphBreak("numpy-unsupported", "ptp with out=")
        return self.max(axis, keepdims=keepdims) - self.min(axis, keepdims=keepdims)

    def any(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
    ) -> Any:
        """Whether any element is true."""
        return self._truth(torch.any, False, axis, out, keepdims, where)

    def all(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
    ) -> Any:
        """Whether all elements are true."""
        return self._truth(torch.all, True, axis, out, keepdims, where)

    def _truth(
        self, function: Any, identity: bool, axis: Any, out: Any, keepdims: Any, where: Any
    ) -> Any:
        axes, keepdims = _axes(axis, self.ndim), keepdims is True
        source = self._masked(cast(self.machine, self.tensor, np.bool_), where, identity)
        found = source
        for place in sorted(axes, reverse=True):
            found = self.call(function, found, place, keepdim=keepdims)
        if found is self.base:
            found = self.call(torch.clone, found)
        return self._reduced(found, axes, keepdims, out)

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        """The place of the first greatest element."""
        return self._place(torch.argmax, axis, out, keepdims)

    def argmin(self, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        """The place of the first least element."""
        return self._place(torch.argmin, axis, out, keepdims)

    def _place(self, function: Any, axis: Any, out: Any, keepdims: Any) -> Any:
        if self.dtype.kind == "c":
            raise GraphBreak("numpy-unsupported", "places of extrema of complex numbers")
        if axis is not None:
            _axes(axis, self.ndim)
        if any(
            size == 0 for size in (self.base.shape if axis is None else (self.base.shape[axis],))
        ):
            raise ValueError(f"attempt to get {function.__name__} of an empty sequence")
        source = self.tensor
        if source.dtype is torch.bool:
            source = cast(self.machine, source, np.uint8)
        if axis is None:
            flat = self.tape.call_method("reshape", (source, (-1,)))
            found = self.call(function, flat, 0)
            if keepdims is True:
                found = self.tape.call_method("reshape", (found, (1,) * self.ndim))
        else:
            found = self.call(function, source, axis, keepdim=keepdims is True)
        return self._reduced(found, _axes(axis, self.ndim), keepdims, out, c_order=True)

    # ------------------------------------------------------------ scans, and the rest

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Running sums."""
        return self._scan(torch.cumsum, axis, dtype, out)

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Running products."""
        return self._scan(torch.cumprod, axis, dtype, out)

    def _scan(self, function: Any, axis: Any, dtype: Any, out: Any) -> Any:
        source = self.ravel() if axis is None else self  # type: ignore[attr-defined]
        (place,) = _axes(0 if axis is None else axis, source.ndim)
        kind = self._accumulating(dtype)
        tensor = cast(self.machine, source.tensor, kind)
        found = self.call(function, tensor, place, dtype=torch_dtype(kind))
        if out is not None:
            store(out, found)
            return out
        return self.new(
            layout.in_order(self.tape, found, layout.k_order([source.base], source.ndim))
        )

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Any:
        """The elements brought between two bounds."""
        if min is None and max is None:
            return self._as_positive(out)
        if max is None:
            return call_ufunc(self.machine, np.maximum, (self, min), {"out": out, **options})
        if min is None:
            return call_ufunc(self.machine, np.minimum, (self, max), {"out": out, **options})
        return call_ufunc(self.machine, _CLIP, (self, min, max), {"out": out, **options})  # type: ignore[attr-defined]

    def _as_positive(self, out: Any) -> Any:
        return call_ufunc(self.machine, np.positive, (self,), {"out": out})

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        """To a number of decimals, half to even; NumPy scales, rounds and scales back."""
        if self.dtype.kind in "biu" and decimals >= 0:
            if self.dtype.kind == "b":
                raise GraphBreak("numpy-unsupported", "booleans are rounded")
            return self._as_positive(out)
        if self.dtype.kind in "ciu":
            raise GraphBreak("numpy-unsupported", f"{self.dtype} is rounded to {decimals} decimals")
        if decimals == 0:
            return call_ufunc(self.machine, np.rint, (self,), {"out": out})
        scale = 10.0 ** abs(decimals)
        first, last = (np.multiply, np.divide) if decimals > 0 else (np.divide, np.multiply)
        found = call_ufunc(self.machine, first, (self, scale), {})
        found = call_ufunc(self.machine, np.rint, (found,), {})
        return call_ufunc(self.machine, last, (found, scale), {"out": out})


# ---------------------------------------------------------------- order statistics


def _sorted_along(array: Any, axis: Any) -> tuple[torch.Tensor, int]:
    """The sorted elements along one axis (None: all), which is moved last, and their number."""
    if axis is None:
        array, axis = array.ravel(), 0
    if isinstance(axis, tuple) or array.dtype.kind == "c":
        raise GraphBreak(
            "numpy-unsupported", "order statistics along several axes, or of complex numbers"
        )
    kind = np.float64 if array.dtype.kind in "biu" else array.dtype
    moved = array.tape.call_function(
        torch.movedim, (cast(array.machine, array.tensor, kind), axis, -1)
    )
    found = array.tape.call_function(torch.sort, (moved,), {"dim": -1})[0]
    size = int(found.shape[-1])
    if size == 0:
        raise GraphBreak("numpy-unsupported", "order statistics of nothing")
    return found, size


def _unless_nan(array: Any, found: torch.Tensor, ascending: torch.Tensor) -> torch.Tensor:
    """nan where the greatest element is."""
    last = array.tape.call_function(torch.select, (ascending, -1, -1))
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
        found = array.tape.call_method("reshape", (found, shape))
    if axis is not None:
        return array._reduced(found, (axis % array.ndim,), keepdims, None)
    return array.new(found, scalar=found.ndim == 0)


@handler(np.median)
def _median(
    machine: Machine, a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    keepdims: Any = False,
) -> Any:  # fmt: skip
    if out is not None or overwrite_input:
        raise GraphBreak("numpy-unsupported", "np.median with out= or overwrite_input=")
    array = as_array(machine, a)
    ascending, size = _sorted_along(array, axis)
    low, high = (array.call(torch.select, ascending, -1, at) for at in ((size - 1) // 2, size // 2))
    found = low if size % 2 else array.call(torch.div, array.call(torch.add, low, high), 2)
    return _kept(array, _unless_nan(array, found, ascending), axis, keepdims)


def _quantile_of(
    machine: Machine, a: Any, q: Any, axis: Any, keepdims: Any, options: dict[str, Any]
) -> Any:
    if not is_constant(q) or any(
        value not in (None, False, "linear", np._NoValue) for value in options.values()
    ):
        raise GraphBreak("numpy-unsupported", "quantiles that are not constant, or with options")
    array = as_array(machine, a)
    wanted = np.asarray(q, np.float64)
    if wanted.ndim > 1 or not ((wanted >= 0) & (wanted <= 1)).all():
        raise GraphBreak(
            "numpy-unsupported", "quantiles that are no vector of numbers in their range"
        )
    ascending, size = _sorted_along(array, axis)
    parts = [
        _kept(
            array,
            _unless_nan(array, _lerp(array, ascending, size, float(at)), ascending),
            axis,
            keepdims,
        )
        for at in wanted.reshape(-1)
    ]
    if wanted.ndim == 0:
        return parts[0]
    return as_array(machine, parts)


def _lerp(array: Any, ascending: torch.Tensor, size: int, quantile: float) -> torch.Tensor:
    """Between two neighbours, computed from the nearer one."""
    place = quantile * (size - 1)
    below = min(int(np.floor(place)), size - 1)
    low = array.call(torch.select, ascending, -1, below)
    high = array.call(torch.select, ascending, -1, min(below + 1, size - 1))
    part = place - below
    step = array.call(torch.sub, high, low)
    found: torch.Tensor = (
        array.call(torch.sub, high, array.call(torch.mul, step, 1 - part))
        if part >= 0.5
        else array.call(torch.add, low, array.call(torch.mul, step, part))
    )
    return found


@handler(np.quantile)
def _quantile(
    machine: Machine, a: Any, q: Any, axis: Any = None, *, keepdims: Any = False, **options: Any
) -> Any:
    return _quantile_of(machine, a, q, axis, keepdims, options)


@handler(np.percentile)
def _percentile(
    machine: Machine, a: Any, q: Any, axis: Any = None, *, keepdims: Any = False, **options: Any
) -> Any:
    if not is_constant(q):
        raise GraphBreak("numpy-unsupported", "percentiles that are not constant")
    return _quantile_of(machine, a, np.true_divide(q, 100.0).tolist(), axis, keepdims, options)


# ---------------------------------------------------------------- reductions that skip nan


def _nan_free(machine: Machine, a: Any, filler: float) -> tuple[Any, Any]:
    """The array with nan replaced, and where it was (None for dtypes without)."""
    array = as_array(machine, a)
    if array.dtype.kind not in "fc":
        return array, None
    absent = array.new(array.call(torch.isnan, array.tensor))
    value = array.call(
        torch.full, (), filler, dtype=array.base.dtype, device=arrays_of(machine).device
    )
    filled = array.call(torch.where, absent.tensor, value, array.tensor)
    return array.new(layout.in_order(array.tape, filled, layout.copied("K", array.base))), absent


def _skipping(name: str, filler: float) -> Callable[..., Any]:
    def call(machine: Machine, a: Any, *args: Any, **kwargs: Any) -> Any:
        filled, _ = _nan_free(machine, a, filler)
        return getattr(filled, name)(*args, **kwargs)

    return call


for _function, _name, _filler in (
    (np.nansum, "sum", 0), (np.nanprod, "prod", 1), (np.nancumsum, "cumsum", 0),
    (np.nancumprod, "cumprod", 1),
):  # fmt: skip
    handler(_function)(_skipping(_name, _filler))


def _without_nan(machine: Machine, a: Any) -> tuple[Any, Any]:
    """The array with nan as 0, and `where=` of the others."""
    filled, absent = _nan_free(machine, a, 0)
    if absent is None:
        return filled, True
    return filled, absent.new(absent.call(torch.logical_not, absent.tensor))


@handler(np.nanmean)
def _nanmean(
    machine: Machine, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    keepdims: Any = False, *, where: Any = True,
) -> Any:  # fmt: skip
    if where is not True:
        raise GraphBreak("numpy-unsupported", "np.nanmean with where=")
    filled, present = _without_nan(machine, a)
    return filled.mean(axis, dtype, out, keepdims, where=present)


def _nan_spread(method: str) -> Callable[..., Any]:
    def call(
        machine: Machine, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
        ddof: Any = 0, keepdims: Any = False, **options: Any,
    ) -> Any:  # fmt: skip
        if options:
            raise GraphBreak("numpy-unsupported", f"np.nan{method} with {', '.join(options)}")
        filled, present = _without_nan(machine, a)
        return getattr(filled, method)(axis, dtype, out, ddof, keepdims, where=present)

    return call


handler(np.nanvar)(_nan_spread("var"))
handler(np.nanstd)(_nan_spread("std"))


def _nan_extremum(method: str, filler: float) -> Callable[..., Any]:
    def call(
        machine: Machine,
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        **options: Any,
    ) -> Any:
        if options or out is not None:
            raise GraphBreak("numpy-unsupported", f"np.nan{method} with out=, initial= or where=")
        filled, absent = _nan_free(machine, a, filler)
        found = getattr(filled, method)(axis, keepdims=keepdims)
        if absent is None:
            return found
        nothing = absent.all(axis, keepdims=keepdims)
        value = found.call(torch.where, nothing.tensor, float("nan"), found.tensor)
        return found.new(cast(machine, value, found.dtype), scalar=found.scalar)

    return call


handler(np.nanmax)(_nan_extremum("max", -np.inf))
handler(np.nanmin)(_nan_extremum("min", np.inf))
