"""Triton source from scheduled kernels: `backend.py` drives, `tiling.py` chooses blocks,
`kernel.py` writes a kernel, `ops.py` prints its scalar operators, `reductions.py` and `scans.py`
what goes along a row. `matmul.py` writes a matrix product, cut as a `matmul_tiling.py` says;
`matmul_candidates.py` lists tilings to measure, which `matmul_estimate.py` ranks.
`short_erf.py` and `short_sigmoid.py` shorten activations before a kernel is written, where
`half_results.py` allows it.
"""
