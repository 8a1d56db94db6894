"""Copies and casts: the same elements, in another dtype, layout or place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten


@decomposition(
    aten.clone.default, aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.lift.default,
    aten.contiguous.default,
    aten.alias_copy.default, aten.detach_copy.default,
)  # fmt: skip
def clone(b: Builder, x: Value, *, memory_format: Any = None) -> Value:
    """x; `decompose` copies it where the layout changes or the copy leaves the graph."""
    return x


@decomposition(aten._to_copy.default)
def to_copy(b: Builder, x: Value, **options: Any) -> Value:
    """x in the dtype and on the device of the result."""
    if b.result.dtype.is_complex:
        return NotImplemented
    if b.result.device != x.spec.device:
        # The narrower of the two dtypes travels.
        if b.result.dtype.itemsize < x.spec.dtype.itemsize:
            x = b.cast(x, b.result.dtype)
        x = b.to_device(x, b.result.device)
    return b.cast(x, b.result.dtype)


@decomposition(aten.copy.default)
def copy(b: Builder, destination: Value, source: Value, non_blocking: bool = False) -> Value:
    """The source, in the dtype, shape, layout and place of the destination."""
    source = b.to_device(source, destination.spec.device)
    return b.expand(b.cast(source, destination.spec.dtype), destination.spec.shape)
