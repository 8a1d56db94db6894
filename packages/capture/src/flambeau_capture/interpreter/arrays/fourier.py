"""numpy.fft, by torch.fft: arguments, dtypes and normalisations are the same.

Each transform runs along the last axis of a row-major tensor, several axes one after the other from the last, as NumPy runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays import layout
from flambeau_capture.interpreter.arrays.base import as_array, cast, plain
from flambeau_capture.interpreter.arrays.handlers import handler
from flambeau_capture.interpreter.arrays.ufuncs import store
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine


def _source(machine: Machine, value: Any) -> torch.Tensor:
    array = as_array(machine, value)
    if array.dtype == np.float16:
        raise GraphBreak("numpy-unsupported", "numpy.fft of float16")
    return cast(machine, array.tensor, np.float64) if array.dtype.kind in "biu" else array.tensor


def _transform(
    machine: Machine, name: str, value: torch.Tensor, n: Any, axis: Any, norm: Any
) -> torch.Tensor:
    """One transform along one axis."""
    if not -value.ndim <= axis < value.ndim:
        raise np.exceptions.AxisError(axis, value.ndim)
    size = value.shape[axis] if n is None else n
    if type(size) is int and (size < 1 or (name == "irfft" and n is None and size < 2)):
        raise ValueError(f"Invalid number of FFT data points ({size}) specified.")
    tape = machine.tape
    moved = tape.call_function(torch.movedim, (value, axis, -1))
    moved = layout.in_order(tape, moved, layout.c_order(value.ndim))
    if name != "rfft" and not moved.dtype.is_complex:
        moved = tape.call_method("to", (moved, torch.promote_types(moved.dtype, torch.complex64)))
    found = tape.call_function(getattr(torch.fft, name), (moved, n, -1, norm))
    return tape.call_function(torch.movedim, (found, -1, axis))  # type: ignore[no-any-return]


def _finished(machine: Machine, source: torch.Tensor, found: torch.Tensor, out: Any) -> Any:
    """The outcome in the memory order of the source."""
    if out is not None:
        store(out, found)
        return out
    return machine.arrays.new(layout.in_order(machine.tape, found, layout.copied("K", source)))


_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The normalisation of the inverse transform."""


def _along_one(name: str) -> Callable[..., Any]:
    def call(
        machine: Machine, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
    ) -> Any:
        source = _source(machine, a)
        return _finished(machine, source, _transform(machine, name, source, n, axis, norm), out)

    return call


@handler(np.fft.hfft)
def _hfft(
    machine: Machine, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
) -> Any:
    source = machine.tape.call_function(torch.conj_physical, (_source(machine, a),))
    found = _transform(machine, "irfft", source, n, axis, _SWAPPED[norm])
    return _finished(machine, source, found, out)


@handler(np.fft.ihfft)
def _ihfft(
    machine: Machine, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
) -> Any:
    source = _source(machine, a)
    found = _transform(machine, "rfft", source, n, axis, _SWAPPED[norm])
    found = machine.tape.call_function(torch.conj_physical, (found,))
    return _finished(machine, source, found, out)


def _along_several(name: str, default: Any) -> Callable[..., Any]:
    def call(
        machine: Machine,
        a: Any,
        s: Any = None,
        axes: Any = default,
        norm: Any = None,
        out: Any = None,
    ) -> Any:
        found = source = _source(machine, a)
        sizes = None if s is None else list(plain(machine, s))
        if axes is None:
            axes = range(-len(sizes), 0) if sizes is not None else range(-found.ndim, 0)
        axes = [int(axis) for axis in axes]
        steps = list(zip(axes, sizes or [None] * len(axes), strict=True))
        # Half spectra are of the last axis: made first, undone last.
        last = (
            [("rfft" if name == "rfftn" else "irfft", steps.pop())]
            if name != "fftn" and name != "ifftn"
            else []
        )
        inner = "fft" if name in ("fftn", "rfftn") else "ifft"
        others = [(inner, step) for step in reversed(steps)]
        order = (
            [*last, *others]
            if name == "rfftn"
            else [*(reversed(others) if last else others), *last]
        )
        for function, (axis, size) in order:
            found = _transform(machine, function, found, size, axis, norm)
        return _finished(machine, source, found, out)

    return call


for _name in ("fft", "ifft", "rfft", "irfft"):
    handler(getattr(np.fft, _name))(_along_one(_name))
for _name in ("fft", "ifft", "rfft", "irfft"):
    handler(getattr(np.fft, f"{_name}2"))(_along_several(f"{_name}n", (-2, -1)))
    handler(getattr(np.fft, f"{_name}n"))(_along_several(f"{_name}n", None))
