"""Order statistics and means that skip nan: median, percentiles, nansum and its kin; and what is
computed with neighbours.

NumPy computes these with branches on the data (is there any nan?) or in C; here they are sorts,
selections and `where`s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import arrays_of
from flambeau_capture.numpy.base import as_array, cast, is_constant
from flambeau_capture.numpy.layout import handler
from flambeau_capture.numpy.linear_algebra import promoted
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine


def _sorted_along(array: Any, axis: Any) -> tuple[torch.Tensor, int]:
    """The elements in ascending order along one axis (all of them for None), moved last, and how
    many there are.
    """
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
    machine: Machine, a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False
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


# ---------------------------------------------------------------- without nan


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
    (np.nansum, "sum", 0), (np.nanprod, "prod", 1), (np.nancumsum, "cumsum", 0), (np.nancumprod, "cumprod", 1),
):  # fmt: skip
    handler(_function)(_skipping(_name, _filler))


@handler(np.nanmean)
def _nanmean(
    machine: Machine, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:  # fmt: skip
    filled, absent = _nan_free(machine, a, 0)
    present: Any = (
        True if absent is None else absent.new(absent.call(torch.logical_not, absent.tensor))
    )
    if where is not True:
        raise GraphBreak("numpy-unsupported", "np.nanmean with where=")
    return filled.mean(axis, dtype, out, keepdims, where=present)


def _nan_spread(method: str) -> Callable[..., Any]:
    def call(
        machine: Machine, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
        **options: Any,
    ) -> Any:  # fmt: skip
        if options:
            raise GraphBreak("numpy-unsupported", f"np.nan{method} with {', '.join(options)}")
        filled, absent = _nan_free(machine, a, 0)
        present: Any = (
            True if absent is None else absent.new(absent.call(torch.logical_not, absent.tensor))
        )
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


# ---------------------------------------------------------------- neighbours


@handler(np.convolve)
def _convolve(machine: Machine, a: Any, v: Any, mode: str = "full") -> Any:
    first, second = (as_array(machine, value) for value in (a, v))
    if first.ndim > 1 or second.ndim > 1 or mode not in ("full", "same", "valid"):
        raise ValueError("object too deep for desired array")
    first, second = (array.reshape((-1,)) if not array.ndim else array for array in (first, second))
    signal, kernel = promoted(machine, first, second)
    if kernel.shape[0] > signal.shape[0]:
        signal, kernel = kernel, signal
    if not kernel.shape[0]:
        raise ValueError("v cannot be empty")
    size, call = int(kernel.shape[0]), machine.tape.call_function
    left = {"full": size - 1, "same": size // 2, "valid": 0}[mode]
    right = {"full": size - 1, "same": size - 1 - left, "valid": 0}[mode]
    padded = call(torch.constant_pad_nd, (signal, [left, right]))
    windows = machine.tape.call_method("unfold", (padded, 0, size, 1))
    found = call(torch.matmul, (windows, call(torch.flip, (kernel, [0]))))
    return arrays_of(machine).new(found)


@handler(np.interp)
def _interp(
    machine: Machine,
    x: Any,
    xp: Any,
    fp: Any,
    left: Any = None,
    right: Any = None,
    period: Any = None,
) -> Any:
    if left is not None or right is not None or period is not None:
        raise GraphBreak("numpy-unsupported", "np.interp with left=, right= or period=")
    places = as_array(machine, x)
    at, known, values = (
        cast(machine, as_array(machine, value).tensor, np.float64) for value in (x, xp, fp)
    )
    if known.shape[0] != values.shape[0]:
        raise ValueError("fp and xp are not of the same length.")
    size = int(known.shape[0])
    if size < 2:
        raise GraphBreak("numpy-unsupported", "np.interp between fewer than two points")

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        return machine.tape.call_function(function, args, kwargs)

    after = call(
        torch.searchsorted,
        known,
        call(torch.clone, at, memory_format=torch.contiguous_format),
        right=True,
    )
    before = call(torch.clamp, call(torch.sub, after, 1), 0, size - 2)
    following = call(torch.add, before, 1)
    x0, y0 = (machine.tape.getitem(table, before) for table in (known, values))
    x1, y1 = (machine.tape.getitem(table, following) for table in (known, values))
    slope = call(torch.div, call(torch.sub, y1, y0), call(torch.sub, x1, x0))
    found = call(torch.add, call(torch.mul, slope, call(torch.sub, at, x0)), y0)
    first, last = (call(torch.select, values, 0, end) for end in (0, -1))
    found = call(torch.where, call(torch.lt, at, call(torch.select, known, 0, 0)), first, found)
    found = call(torch.where, call(torch.ge, at, call(torch.select, known, 0, -1)), last, found)
    return arrays_of(machine).new(found, scalar=places.ndim == 0)


@handler(np.roll)
def _roll(machine: Machine, a: Any, shift: Any, axis: Any = None) -> Any:
    array = as_array(machine, a)
    if not is_constant(shift) and not isinstance(shift, int):
        raise GraphBreak("data-dependent", "np.roll by a computed shift")
    if axis is None:
        flat = machine.tape.call_method("reshape", (array.tensor, (-1,)))
        found = machine.tape.call_function(torch.roll, (flat, shift, 0))
        return array.new(machine.tape.call_method("reshape", (found, array.shape)))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(axes) == 1 and len(shifts) > 1:
        axes = axes * len(shifts)
    if any(not -array.ndim <= each < array.ndim for each in axes):
        raise np.exceptions.AxisError(axes[0], array.ndim)
    found = machine.tape.call_function(torch.roll, (array.tensor, shifts, axes))
    return array.new(layout.in_order(array.tape, found, layout.copied("K", array.base)))
