"""Chebyshev series of special functions, computed from mpmath's values.

`python -m tools.series` rewrites the table that decompositions evaluate.
"""
