"""Decoded bytecode, and what is known of it before it runs: liveness, and uses of loaded values.

May use nothing else of the interpreter.
"""
