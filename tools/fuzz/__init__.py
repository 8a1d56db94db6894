"""Random programs, compiled and eager, compared: `python -m tools.fuzz tensors`, `python -m
tools.fuzz python`.
"""
