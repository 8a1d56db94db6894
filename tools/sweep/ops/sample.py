"""The fixed sample that CI runs: operators of every kind, and the variants that differ most from
one another.
"""

from __future__ import annotations

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
