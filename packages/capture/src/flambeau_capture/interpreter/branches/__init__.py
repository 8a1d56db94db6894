"""Branches on data: one way only raises, or an assumption is made that the graph checks.

May use semantics, the run loop and machine, and what these use.
"""
