"""What Python's operations mean: attributes, items, operators, formatting, calls of C functions.

Uses values and torch_calls.
"""
