"""Exported graphs: one call captured whole, as a value that is printed, drawn, saved, loaded and
called. The rest of the package does not import this room.

export.py                 `export`: from a call to an ExportedGraph
dims.py                   which sizes may vary
tree.py, signature.py     how arguments and results are nested; how a call is bound and checked
contents.py               the parts of an exported graph, and its text
graph.py                  ExportedGraph, which is called; `load`
svg.py                    its picture
files.py, codec.py        its file, and the JSON forms in it; targets.py: what a file may call;
interop_torch.py          ExportedGraph -> torch.export.ExportedProgram
"""
