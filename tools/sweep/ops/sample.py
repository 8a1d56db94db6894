"""The names of variants, and the fixed sample that CI runs: operators of every kind, and the
variants that differ most from one another.
"""

from __future__ import annotations

DTYPES = {
    "int": "int64",
    "int8": "int8",
    "bool": "bool",
    "bf16": "bfloat16",
    "complex": "complex64",
    "float8": "float8_e4m3fn",
}
"""Variants of one dtype, and its name in torch."""
VARIANTS = (
    "static", "dynamic", "no_grad", "inference", "views", "inplace", "method", "out", "errors",
    "devices", *DTYPES,
)  # fmt: skip
SAMPLE = (
    "add",
    "addr",
    "cat",
    "gather",
    "index_put",
    "linalg.cholesky",
    "max.reduction_with_dim",
    "softmax",
    "topk",
    "view",
)
SAMPLE_VARIANTS = (
    "static", "dynamic", "inference", "views", "inplace", "out", "errors", "int", "complex",
)  # fmt: skip
