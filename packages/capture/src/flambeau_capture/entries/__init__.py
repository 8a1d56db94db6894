"""Compiled versions of one callable: how an entry is made, called, replayed eagerly, resumed.

Uses guards, graphs and bytecode; never the interpreter.
"""
