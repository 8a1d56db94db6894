"""Triton source from scheduled kernels: `backend.py` drives, `kernel.py` writes a kernel, `ops.py` prints its scalar operators."""
