"""Distances between the rows of matrices, where eager takes no matrix product.

_cdist_forward(x: f32[p, m], y: f32[r, m], 1.0, None)  ->  sum(abs(x[:, None] - y), 2)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.strides import broadcast_shapes

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value

aten = torch.ops.aten

MOST_ROWS = 25
"""Of more rows eager computes Euclidean distances with a matrix product, unless it is told not to.
"""
_USE_PRODUCT, _NO_PRODUCT = 1, 2


@decomposition(aten._cdist_forward.default)
def cdist(b: Builder, x: Value, y: Value, p: float, compute_mode: int | None) -> Any:
    """The p-norm of each difference of two rows."""
    if x.spec.dtype is not y.spec.dtype or not x.spec.dtype.is_floating_point:
        return NotImplemented
    rows = (x.spec.shape[-2], y.spec.shape[-2])
    if p == 2 and compute_mode != _NO_PRODUCT:
        few = all(sizes.likely_ge(MOST_ROWS, count) for count in rows)
        if compute_mode == _USE_PRODUCT or not few:
            return NotImplemented
    if not sizes.likely_ge(x.spec.shape[-1], 1):
        return NotImplemented
    batch = broadcast_shapes(x.spec.shape[:-2], y.spec.shape[:-2])
    shape = (*batch, *rows, x.spec.shape[-1])
    x = b.unsqueeze(b.widen(x), x.spec.ndim - 1)
    y = b.unsqueeze(b.widen(y), y.spec.ndim - 2)
    return _norm(b, b.abs(b.sub(b.expand(x, shape), b.expand(y, shape))), p)


def _norm(b: Builder, apart: Value, p: float) -> Value:
    """The p-norm of numbers, none negative, along the last dim."""
    along = (apart.spec.ndim - 1,)
    if p == 0:
        return b.sum(b.minimum(b.ceil(apart), 1.0), along)
    if p == 1:
        return b.sum(apart, along)
    if p == 2:
        return b.sqrt(b.sum(b.mul(apart, apart), along))
    if math.isinf(p):
        return b.amax(apart, along)
    return b.pow(b.sum(b.pow(apart, float(p)), along), 1.0 / p)
