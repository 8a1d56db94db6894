"""Index expressions: sympy integers over loop axes and sizes; made, simplified, printed."""
