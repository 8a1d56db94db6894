"""Frame capture: CPython frames in, fx graphs of torch-level calls out, with guards.

compile(fn, backend=...)      a callable that runs what the backend makes of fn's graphs
export(fn, args, kwargs)      one graph as a value: printed, drawn, called, saved; load(path) reads
                              it back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau_capture import reasons
from flambeau_capture.compiled import compile_callable, state_of
from flambeau_capture.core import core_is_native
from flambeau_capture.entries.entry import Backend
from flambeau_capture.exported.dims import Dim
from flambeau_capture.exported.export import export
from flambeau_capture.exported.files import ExportFileError
from flambeau_capture.exported.graph import ExportedGraph, load
from flambeau_capture.exported.signature import InputMismatch
from flambeau_capture.interpreter.capture import capture_frame
from flambeau_capture.numpy.library import wrap_numpy
from flambeau_capture.options import CaptureOptions
from flambeau_capture.record import Break, CaptureError

__all__ = [
    "Backend", "Break", "CaptureError", "CaptureOptions", "Dim", "ExportFileError", "ExportedGraph",
    "InputMismatch", "compile", "core_is_native", "export", "load", "reasons", "state_of",
    "wrap_numpy",
]  # fmt: skip


def compile(
    fn: Callable[..., Any], *, backend: Backend, options: CaptureOptions | None = None
) -> Callable[..., Any]:
    """A callable that runs what `backend(gm, example_inputs)` makes of the graphs of `fn`."""
    return compile_callable(fn, capture_frame, backend, options)
