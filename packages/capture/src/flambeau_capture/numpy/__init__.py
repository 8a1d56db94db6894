"""NumPy in captured frames: an array is a stand-in over a fake tensor, and NumPy's functions record
torch calls on the tape.

    x / np.linalg.norm(x, axis=0)       square, sum, sqrt, div: float64 as NumPy computes it

NumPy itself determines the dtype of a computation and computes what depends on constants only. Its
Python functions are interpreted down to its C functions, which have torch calls here. A C function
without them breaks the graph, with a reason.

library.py is the only file that the rest of the package imports. It registers the room with
`interpreter/foreign_types.py`, and imports the others, which import NumPy, when a frame first meets
an object of NumPy.

library.py                     which objects are NumPy's; wrap_numpy; tensors of arrays, and back
arrays.py, array.py            the arrays of one capture and their stand-ins; what an array can do
indexing.py, layout.py         items; memory orders, dtypes, the table of functions
ufuncs.py, kernels.py          universal functions and operators; the torch calls of each loop
functions.py                   calls of NumPy's functions, by subject in creation.py, reductions.py,
                               linear_algebra.py, random.py
"""
