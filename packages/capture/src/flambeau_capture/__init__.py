"""Frame capture: CPython frames in, fx graphs of torch-level calls out, with guards.

compile(fn, backend=...)      a callable that runs what the backend makes of fn's graphs
export(fn, args, kwargs)      one graph as a value: printed, drawn, called, saved; load(path) reads
                              it back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flambeau_capture import reasons
    from flambeau_capture.api import compile
    from flambeau_capture.capture_stage import wrap_numpy
    from flambeau_capture.compiled import state_of
    from flambeau_capture.core import core_is_native
    from flambeau_capture.entries.entry import Backend
    from flambeau_capture.export_stage import export
    from flambeau_capture.exported.dims import Dim
    from flambeau_capture.exported.files import ExportFileError
    from flambeau_capture.exported.graph import ExportedGraph, load
    from flambeau_capture.exported.signature import InputMismatch
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import Break, CaptureError

__all__ = [
    "Backend", "Break", "CaptureError", "CaptureOptions", "Dim", "ExportFileError", "ExportedGraph",
    "InputMismatch", "compile", "core_is_native", "export", "load", "reasons", "state_of",
    "wrap_numpy",
]  # fmt: skip

lazy_exports(
    __name__,
    {
        "flambeau_capture": ("reasons",),
        "flambeau_capture.api": ("compile",),
        "flambeau_capture.capture_stage": ("wrap_numpy",),
        "flambeau_capture.compiled": ("state_of",),
        "flambeau_capture.core": ("core_is_native",),
        "flambeau_capture.entries.entry": ("Backend",),
        "flambeau_capture.export_stage": ("export",),
        "flambeau_capture.exported.dims": ("Dim",),
        "flambeau_capture.exported.files": ("ExportFileError",),
        "flambeau_capture.exported.graph": ("ExportedGraph", "load"),
        "flambeau_capture.exported.signature": ("InputMismatch",),
        "flambeau_capture.options": ("CaptureOptions",),
        "flambeau_capture.record": ("Break", "CaptureError"),
    },
)
