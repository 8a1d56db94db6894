"""Triton source from scheduled kernels: `backend.py` drives, `tiling.py` chooses blocks,
`kernel.py` writes a kernel, upon `source_writer.py`; `ops.py` prints its scalar operators,
`reductions.py` and `scans.py` what goes along a row, `row_shares.py` kernels that reduce rows and
columns at once, `row_tiles.py` rows longer than one tile, `vector_rows.py` rows that do not begin
or end where a vector does, `vector_bounds.py` loads that a condition ends there,
`filled_loads.py` loads that give the padding where a mask does not hold, `first_sorted.py` the few
of a row that a selection wants, `rounded_products.py` products that no compiler may contract with a
sum. `combine.py` puts several kernels into one launch.

`matmul.py` writes a matrix product, cut as a `matmul_tiling.py` says; `matmul_candidates.py` lists
tilings to measure, which `matmul_estimate.py` ranks. `operand_tiles.py` computes what its loop need
not, `packed_operand.py` and `packed_sum.py` read numbers that share a byte, and
`grouped_rows.py` places the tiles of grouped products. `flex_attention.py` writes attention, cut as
`attention_tiling.py` says and launched by `attention_backend.py`.

`../short_erf.py` and `short_sigmoid.py` shorten activations before a kernel is written, where
`../half_results.py` allows it. `user_kernel.py` launches the program's own Triton kernels, whose
text `kernel_text.py` makes whole.
"""
