"""Values in a frame: tracked objects, lazy values, symbolic numbers, deferred strings.

May use protocols and code. A capture is a `protocols.Recorder` here.
"""
