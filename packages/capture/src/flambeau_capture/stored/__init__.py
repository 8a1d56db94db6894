"""Entries as plain data, for other processes: described, written, found again and read.

May use guards, sources, record, events and the light modules of entries; not the interpreter.
"""
