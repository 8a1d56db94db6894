"""Shape rules of copies and casts: clone, _to_copy, copy_, and the view_copy family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.overloads import check_writable, overloads
from flambeau_prims.rules.registry import rule, rule_for
from flambeau_prims.sizes import expect, ge
from flambeau_prims.spec import Spec
from flambeau_prims.strides import (
    broadcast_shapes,
    copy_stride,
    is_contiguous,
    same_shape,
    wrap_dim,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from flambeau_prims.sizes import Size

aten = torch.ops.aten


@rule(aten.clone.default)
def clone(self: Spec, *, memory_format: torch.memory_format | None = None) -> Spec:
    """A copy; the layout is preserved unless a memory format is given."""
    return self.fresh(stride=copy_stride(self, memory_format))


@rule(aten._to_copy.default)
def to_copy(
    self: Spec,
    dtype: torch.dtype | None,
    device: torch.device | None,
    memory_format: torch.memory_format | None,
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
def copy_(self: Spec, src: Spec) -> Spec:
    """self, once src is seen to broadcast to it."""
    _check_broadcasts_to(self, src)
    check_writable(self)
    return self


@rule(aten.copy.default)
def copy(self: Spec, src: Spec) -> Spec:
    """What self becomes after copy_: its dtype, and its layout as far as that is dense."""
    _check_broadcasts_to(self, src)
    return clone(self)


def _check_broadcasts_to(self: Spec, src: Spec) -> None:
    if not same_shape(broadcast_shapes(self.shape, src.shape), self.shape):
        raise RuntimeError(
            f"The size of tensor a {list(self.shape)} must match the size of tensor b "
            f"{list(src.shape)}"
        )


@rule(aten.lift.default, aten.lift_fresh_copy.default)
def fresh(self: Spec) -> Spec:
    """A copy, layout preserved."""
    return clone(self)


# Copies of views: row-major, whatever the view's strides.


def _copy_of(view: OpOverload) -> Callable[..., Any]:
    def copy_of_view(self: Spec, *args: Any, **kwargs: Any) -> Any:
        found = rule_for(view)
        assert found is not None
        result = found(self, *args, **kwargs)
        return result.fresh() if isinstance(result, Spec) else [r.fresh() for r in result]

    return copy_of_view


_VIEWS = (
    "alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t "
    "transpose unbind unfold unsqueeze view_as_complex view_as_real"
)
for _name in _VIEWS.split():
    for _op in overloads(f"{_name}_copy"):
        rule(_op)(_copy_of(getattr(getattr(aten, _name), _op._overloadname)))


@rule(aten.narrow_copy.default)
def narrow_copy(self: Spec, dim: int, start: Size, length: Size) -> Spec:
    """A row-major copy of `length` places along a dimension."""
    axis = wrap_dim(dim, self.ndim)
    if not self.shape:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    size = self.shape[axis]
    first = start if ge(start, 0) else start + size
    if not ge(length, 0) or not ge(first, 0) or not expect("<=", first + length, size):
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return self.fresh((*self.shape[:axis], length, *self.shape[axis + 1 :]))
