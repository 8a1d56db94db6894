"""Bytecode as data: instructions, their tables, and code objects that resume a frame midway.

Uses nothing else of the package but `core`.
"""
