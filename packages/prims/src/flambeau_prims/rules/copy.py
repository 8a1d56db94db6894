"""Shape rules of copies and casts: clone, _to_copy, copy_, and the view_copy family."""

from __future__ import annotations

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.spec import Spec
from flambeau_prims.strides import broadcast_shapes, copy_stride, is_contiguous, same_shape

aten = torch.ops.aten


@rule(aten.clone.default)
def clone(self: Spec, *, memory_format: torch.memory_format | None = None) -> Spec:
    """A copy; the layout is preserved unless a memory format is given."""
    return Spec.of(
        self.shape, stride=copy_stride(self, memory_format), dtype=self.dtype, device=self.device
    )


@rule(aten._to_copy.default)
def to_copy(
    self: Spec,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Spec:
    """A copy in another dtype or on another device."""
    return Spec.of(
        self.shape,
        stride=copy_stride(self, memory_format),
        dtype=self.dtype if dtype is None else dtype,
        device=self.device if device is None else device,
    )


@rule(aten.contiguous.default)
def contiguous(self: Spec, *, memory_format: torch.memory_format = torch.contiguous_format) -> Spec:
    """self if it is contiguous, else a copy."""
    if memory_format == torch.contiguous_format and is_contiguous(self):
        return self
    return clone(self, memory_format=memory_format)


@rule(aten.copy_.default)
def copy_(self: Spec, src: Spec, non_blocking: bool = False) -> Spec:
    """self, once src is seen to broadcast to it."""
    _check_broadcasts_to(self, src)
    return self


@rule(aten.copy.default)
def copy(self: Spec, src: Spec, non_blocking: bool = False) -> Spec:
    """What self becomes after copy_: its dtype, and its layout as far as that is dense."""
    _check_broadcasts_to(self, src)
    return clone(self)


def _check_broadcasts_to(self: Spec, src: Spec) -> None:
    if not same_shape(broadcast_shapes(self.shape, src.shape), self.shape):
        raise RuntimeError(
            f"The size of tensor a {list(self.shape)} must match the size of tensor b {list(src.shape)}"
        )


@rule(aten.lift.default, aten.lift_fresh_copy.default)
def fresh(self: Spec) -> Spec:
    """A copy, layout preserved."""
    return clone(self)
