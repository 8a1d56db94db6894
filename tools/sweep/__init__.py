"""Sweeps: everything that a table lists, compiled and compared with eager.

`models`: every architecture of transformers.  `ops`: every operator of torch's own operator tests.
"""
