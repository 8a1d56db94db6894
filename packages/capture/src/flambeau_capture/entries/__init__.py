"""Compiled versions of one callable: how an entry is made, called, replayed eagerly and resumed behind a graph break.

Uses guards, graphs and bytecode; never the interpreter.
"""
