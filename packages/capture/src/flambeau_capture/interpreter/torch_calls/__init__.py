"""Calls of torch: the tape that records them, its inputs, the thread state that they read.

Uses values and code.
"""
