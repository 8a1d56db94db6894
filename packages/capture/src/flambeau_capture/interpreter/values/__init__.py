"""How the interpreter represents values: tracked objects, lazy values, symbolic numbers, deferred strings.

Uses code and nothing above it.
"""
