"""Dropout's gradient.  Its forward draws random numbers: `random.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.builder import compute_dtype
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten


@decomposition(aten.native_dropout_backward.default)
def dropout_backward(b: Builder, grad: Value, mask: Value, scale: float) -> Value:
    """grad * mask * scale."""
    result = b.results[0]
    assert result is not None
    wide = b.cast(grad, compute_dtype(result.dtype))
    return b.mul(b.mul(wide, b.cast(mask, wide.spec.dtype)), scale)
