"""Index expressions: sympy integers over loop axes and sizes, how they are made, simplified,
measured and printed.
"""
