"""Triton source from scheduled kernels: `backend.py` drives, `tiling.py` chooses blocks,
`kernel.py` writes a kernel, `ops.py` prints its scalar operators.
"""
