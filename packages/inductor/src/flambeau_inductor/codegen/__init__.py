"""Code generators: kernels of the loop IR in, source text and launches out. `base.py` has the
contract.
"""
