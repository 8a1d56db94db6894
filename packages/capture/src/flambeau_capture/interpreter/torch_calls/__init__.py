"""Calls of torch: the tape that records them, its inputs, and the state of torch that they read.

May use foreign_types and values, and what these use. A capture is a `protocols.Recorder` here.
"""
