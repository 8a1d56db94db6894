"""numpy.fft, by torch.fft: arguments, dtypes and normalisations are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.interpreter.arrays.base import as_array, cast
from flambeau_capture.interpreter.arrays.functions import handler
from flambeau_capture.interpreter.arrays.products import finished
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine


def _tensor(machine: Machine, value: Any, axis: Any) -> torch.Tensor:
    array = as_array(machine, value)
    if array.dtype == np.float16:
        raise GraphBreak("numpy-unsupported", "numpy.fft of float16")
    if any(size == 0 for size in array.shape):
        raise ValueError("Invalid number of FFT data points (0) specified.")
    return cast(machine, array.tensor, np.float64) if array.dtype.kind in "biu" else array.tensor


def _along_one(name: str) -> Callable[..., Any]:
    def call(
        machine: Machine, a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None
    ) -> Any:
        function = getattr(torch.fft, name)
        found = machine.tape.call_function(function, (_tensor(machine, a, axis), n, axis, norm))
        return finished(machine, found, out)

    return call


def _along_several(name: str, default: Any) -> Callable[..., Any]:
    def call(
        machine: Machine,
        a: Any,
        s: Any = None,
        axes: Any = default,
        norm: Any = None,
        out: Any = None,
    ) -> Any:
        function = getattr(torch.fft, name)
        found = machine.tape.call_function(function, (_tensor(machine, a, axes), s, axes, norm))
        return finished(machine, found, out)

    return call


for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    handler(getattr(np.fft, _name))(_along_one(_name))
for _name in ("fft2", "ifft2", "rfft2", "irfft2"):
    handler(getattr(np.fft, _name))(_along_several(_name, (-2, -1)))
for _name in ("fftn", "ifftn", "rfftn", "irfftn"):
    handler(getattr(np.fft, _name))(_along_several(_name, None))
