"""NumPy functions as tensor operations: an array of the program is a tensor plus the rules of NumPy.

The interpreter reaches this folder through one registry (`interpreter/numpy_objects.py`).
"""
