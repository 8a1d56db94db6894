"""Operators that forward-mode differentiation calls: about tangents, which are to lie in memory as
their primals do.

Those that ask a question compute no tensor: their rules give the answer itself.
"""

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
    """Whether both reach equally far into memory: else a tangent is copied."""
    return eq(_reach(self), _reach(other))


@rule(aten._new_zeros_with_same_feature_meta.default)
def new_zeros_with_same_feature_meta(self: Spec, other: Spec, self_num_batch_dims: int) -> Spec:
    """Like `other`, within storage as large, for each element of self's batch dims."""
    batch = self.shape[:self_num_batch_dims]
    strides: list[Size] = []
    step = _reach(other)
    for size in reversed(batch):
        strides.insert(0, step)
        step = step * size
    return Spec.of(
        (*batch, *other.shape),
        stride=(*strides, *other.stride),
        dtype=self.dtype,
        device=self.device,
        offset=other.offset,
    )


def _reach(spec: Spec) -> Size:
    """Number of elements from the start of the storage to the last one of the tensor."""
    if is_empty(spec.shape):
        return spec.offset
    reach: Size = spec.offset + 1
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        reach = reach + (size - 1) * stride
    return reach
