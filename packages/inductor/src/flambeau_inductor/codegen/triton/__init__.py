"""Triton source from scheduled kernels: `backend.py` drives, `tiling.py` chooses blocks,
`kernel.py` writes a kernel, `ops.py` prints its scalar operators, `reductions.py` and `scans.py`
what goes along a row. `matmul.py` writes a matrix product, `matmul_tiling.py` chooses its blocks.
"""
