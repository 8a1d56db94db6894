"""Building kernels: one module a language."""
