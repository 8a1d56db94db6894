"""Choosing between ways to run a schedule by measuring them: `gemm.py` lists the ways to multiply
matrices on a GPU, `gemm_cpp.py` those on a CPU, both on `product_ways.py`; `loops.py` lists those
to cut a loop nest, `tune.py` asks a tuner and changes the schedule. A way is a Program of some
groups (`ways.py`), which `order.py` lets join; `onednn_epilogues.py` names what oneDNN computes
together with a product; `prologue.py` computes a factor inside the product, `row_statistics.py`
reduces a product's rows there, and `unread_results.py` leaves out what nobody reads of one. Where
nobody measures, `dequantised.py` chooses for products of quantised weights, `reduced_products.py`
for those whose rows are reduced; on a CPU `integer_products.py` for products of int8 matrices and
`grouped_products.py` for those of few rows in groups.
"""
