"""Binary searches in sorted boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten

MOST_BOUNDARIES = 1 << 20
"""A search in more, or in an unknown number, is left to ATen: each halving is a part of a
kernel.
"""


@decomposition(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: Builder, boundaries: Value, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Any:  # fmt: skip
    """How many boundaries along the last dim are less than each value (`right`: or equal)."""
    if sorter is not None or side not in (None, "left", "right") or (side == "left" and right):
        return NotImplemented  # ATen refuses contradictions
    return _search(b, boundaries, x, out_int32, right or side == "right")


@decomposition(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    b: Builder, x: Any, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Any:
    """The same in boundaries of one dim."""
    return _search(b, boundaries, x, out_int32, right)


def _search(b: Builder, boundaries: Value, x: Any, out_int32: bool, right: bool) -> Any:
    have = boundaries.spec
    if not isinstance(x, Value):
        if b.promoted_dtype([boundaries, x]) is not have.dtype:
            return NotImplemented
        x = b.full((), x, have.dtype, have.device)
    want = x.spec
    known = have.ndim == 1 or (have.ndim == want.ndim and have.shape[:-1] == want.shape[:-1])
    count = have.shape[-1] if have.ndim else 0
    if (
        not known
        or not isinstance(count, int)
        or not 0 < count <= MOST_BOUNDARIES
        or have.dtype is not want.dtype
        or have.device != want.device
    ):
        return NotImplemented
    places = b.searchsorted(boundaries, x, right)
    return b.cast(places, torch.int32) if out_int32 else places
