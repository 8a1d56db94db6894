"""Code generators: kernels of the loop IR -> source text and launches; contract: `base.py`."""
