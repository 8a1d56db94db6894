"""Operators that answer a question about the geometry of tensors, and compute none: their rules give the answer itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import eq
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_empty, same_shape

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten


@rule(aten.is_same_size.default)
def is_same_size(self: Spec, other: Spec) -> bool:
    """Whether the shapes are equal; forward-mode differentiation asks it of each tangent."""
    return same_shape(self.shape, other.shape)


@rule(aten._has_same_storage_numel.default)
def has_same_storage_numel(self: Spec, other: Spec) -> bool:
    """Whether the two reach equally far into memory, which decides if a tangent is copied into its primal's layout."""
    return eq(_reach(self), _reach(other))


def _reach(spec: Spec) -> Size:
    """Number of elements from the start of the storage to the last one of the tensor."""
    if is_empty(spec.shape):
        return spec.offset
    reach: Size = spec.offset + 1
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        reach = reach + (size - 1) * stride
    return reach
