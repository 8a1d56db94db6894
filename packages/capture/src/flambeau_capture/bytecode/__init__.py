"""Bytecode as data: instructions, their tables, and the code objects that resume a frame in its middle.

Uses nothing else of the package but `core`.
"""
