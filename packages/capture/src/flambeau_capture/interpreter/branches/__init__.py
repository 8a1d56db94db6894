"""Branches on data: branches of which one way raises, and branches taken on an assumption that the graph checks.

Uses values, torch_calls and semantics.
"""
