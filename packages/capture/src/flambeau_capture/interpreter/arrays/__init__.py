"""NumPy in a captured frame: ndarrays are stand-ins over fake tensors, and NumPy's functions make
torch calls on the tape.

    x / np.linalg.norm(x, axis=0)       square, sum, sqrt, div: float64 as NumPy computes it

NumPy itself answers what a computation's dtype is and computes what depends on constants only; its
functions that are written in Python are interpreted down to those written in C, which have torch
calls for them here. What has none breaks the graph, with a reason.

This package imports NumPy, so it is imported by `numpy_objects` alone, when a frame first meets an
object of NumPy's.

table.py, base.py, array.py, array_operators.py, reductions.py, flags.py    the stand-in of an array: which there are, and what it can do
indexing.py, layout.py, dtypes.py    items, memory orders, dtypes
ufuncs.py, kernels.py    universal functions: dtypes and broadcasting as NumPy's, and the torch
                         calls of each loop
functions.py, handlers.py    calls of NumPy's functions, and the table of those that are handled, by
                             subject:
creation.py, combining.py, statistics.py, products.py, linear_algebra.py, fourier.py, random.py
converters.py    what NumPy's own Python code makes while it is interpreted
"""

from __future__ import annotations

import importlib

_LISTS = ("functions", "creation", "combining", "linear_algebra", "statistics", "fourier")


def load_all() -> None:
    """Import the files that list NumPy's functions."""
    for name in _LISTS:
        importlib.import_module(f"{__name__}.{name}")
