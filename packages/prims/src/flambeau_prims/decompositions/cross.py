"""The cross product, along a dim of three elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value

aten = torch.ops.aten


@decomposition(aten.linalg_cross.default)
def linalg_cross(b: Builder, x: Value, y: Value, *, dim: int = -1) -> Any:
    """Each element from the two that follow it, in turn."""
    if x.spec.dtype is not y.spec.dtype or x.spec.dtype is torch.bool:
        return NotImplemented
    x, y = b.broadcast([b.widen(x), b.widen(y)])
    dim = wrap_dim(dim, x.spec.ndim)
    xs, ys = ([b.slice(t, dim, k, k + 1, 1) for k in range(3)] for t in (x, y))
    parts = []
    for k in range(3):
        after, last = (k + 1) % 3, (k + 2) % 3
        parts.append(b.sub(b.mul(xs[after], ys[last]), b.mul(xs[last], ys[after])))
    return b.cat(parts, dim)
