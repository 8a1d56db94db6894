"""What Python's operations mean: attributes, items, operators, calls of C functions, formatting, class statements.

Uses values and torch_calls.
"""
