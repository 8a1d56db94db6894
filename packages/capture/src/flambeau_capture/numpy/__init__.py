"""NumPy in a captured frame: an array is a stand-in over a fake tensor, and NumPy's functions record
torch calls on the tape.

    x / np.linalg.norm(x, axis=0)       square, sum, sqrt, div: float64 as NumPy computes it

NumPy itself answers what the dtype of a computation is and computes what depends on constants only.
Its functions written in Python are interpreted down to those written in C, which have torch calls
here.  A function without one breaks the graph, with a reason.

This folder imports NumPy.  `interpreter/numpy_objects.py` imports it when a frame first meets an
object of NumPy; nothing else of the interpreter does.

table.py, base.py, array.py    the stand-in of an array: which there are, and what it can do
indexing.py, layout.py         items, memory orders, dtypes, the table of functions by subject
ufuncs.py, kernels.py          universal functions and operators; the torch calls of each loop
functions.py                   calls of NumPy's functions, by subject in creation.py, reductions.py,
                               statistics.py, linear_algebra.py, random.py
"""

from __future__ import annotations

import importlib

_LISTS = ("functions", "creation", "linear_algebra", "statistics")


def load_all() -> None:
    """Import the files that list NumPy's functions."""
    for name in _LISTS:
        importlib.import_module(f"{__name__}.{name}")
