"""NumPy in a captured frame: ndarrays are stand-ins over fake tensors, and NumPy's functions make torch calls on the tape.

    x / np.linalg.norm(x, axis=0)       square, sum, sqrt, div: float64 as NumPy computes it

NumPy itself answers what a computation's dtype is and computes what depends on constants only; its functions that are written in Python are
interpreted down to those written in C, which have torch calls for them here.  What has none breaks the graph, with a reason.

This package imports NumPy, so it is imported by `present` alone, when a frame first meets an object of NumPy's.
"""

from __future__ import annotations

import importlib

_LISTS = ("functions", "linear_algebra", "statistics", "fourier")


def load_all() -> None:
    """Import the files that list NumPy's functions."""
    for name in _LISTS:
        importlib.import_module(f"{__name__}.{name}")
