"""Exported graphs: one call captured whole, as a value that is printed, drawn, saved, loaded and
called.

`tree.py` is how arguments and results are nested, `signature.py` how a call is bound and checked,
`dims.py` which sizes may vary, `graph.py` the exported graph itself, `lift.py` makes it of a
capture, `text.py` and `svg.py` are its pictures, `write.py` and `read.py` its file format, with
`codec.py`, `graphs.py` and `size_text.py`, the forms, and `targets.py`, what a file may call.
"""
