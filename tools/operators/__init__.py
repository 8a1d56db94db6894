"""What becomes of each operator of torch's operator tests (`op_db`): kernels, calls of ATen or
breaks; and the page of the operators that stay calls of ATen (docs/operators.md).
"""
