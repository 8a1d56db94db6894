"""Decoded bytecode, and what is known about it before it runs: liveness, and how a loaded value is used.

Uses nothing else of the interpreter.
"""
