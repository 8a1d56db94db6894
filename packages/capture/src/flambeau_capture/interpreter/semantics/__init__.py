"""What Python's operations mean: attributes, items, operators, formatting, calls of C functions.

May use the run loop and machine, and what these use.
"""
