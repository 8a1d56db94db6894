"""Which tiles and warps are fastest on a GPU: what `codegen/triton/tiling.py` is fitted to."""
