"""Choosing between Programs that compute the same, by measurement.

`contest.py` is the border: what a compiler asks. `tuner.py` answers: from the cache, or by
building, checking and timing. `cuda_bench.py` times on a GPU, `cpu_bench.py` on a CPU; `inputs.py`
makes what is computed with, `sampling.py` says how often and which time counts, `table.py` prints
what was measured.
"""
