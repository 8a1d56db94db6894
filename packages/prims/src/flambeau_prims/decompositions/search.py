"""Binary searches in sorted boundaries, and membership in unsorted elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
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


FEW_MEMBERS = 64
"""Each element is compared with each of so few."""
MOST_MEMBERS = 1024
"""A kernel sorts so many; membership in more is left to ATen."""


@decomposition(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(
    b: Builder, elements: Any, test_elements: Any, *, assume_unique: bool = False,
    invert: bool = False,
) -> Any:  # fmt: skip
    """Whether each element is among others; NaN is among none."""
    if not isinstance(elements, Value) or not isinstance(test_elements, Value):
        if isinstance(elements, bool) or isinstance(test_elements, bool):
            return NotImplemented  # eager's error
        single = b.ne if invert else b.eq
        if not isinstance(test_elements, Value):
            return single(*b.promote([elements, test_elements]))
        dtype = test_elements.spec.dtype
        if b.promoted_dtype([elements, test_elements]) is not dtype:
            return NotImplemented
        elements = b.full((), elements, dtype, test_elements.spec.device)
    members, shape = test_elements, elements.spec.shape
    if members.spec.dtype is not elements.spec.dtype or members.spec.device != elements.spec.device:
        return NotImplemented
    count = members.spec.numel
    elements, members = b.widen(elements), b.reshape(b.widen(members), (count,))
    if sizes.likely_ge(FEW_MEMBERS, count):
        pairs = (*shape, count)
        equal = b.eq(b.spread(elements, (len(shape),), pairs), b.expand(members, pairs))
        known = b.any(equal, (len(shape),))
    elif isinstance(count, int) and count <= MOST_MEMBERS:
        ordered = b.sort(members, 0, False, count)
        place = b.minimum(b.searchsorted(ordered, elements, False), count - 1)
        known = b.eq(b.index(ordered, [place]), elements)
    else:
        return NotImplemented
    return b.bitwise_not(known) if invert else known
