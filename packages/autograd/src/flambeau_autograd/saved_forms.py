"""What hooks on saved tensors have unpacked, in the form that a compiled backward reads.

saved: f32[6, 4] of strides (8, 2)    unpacked: f32[6, 4] of strides (4, 1)    ->  copied to (8, 2)

Eager's kernels read any strides and dtype; ours read the memory that they were compiled for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.layouts import laid_out

if TYPE_CHECKING:
    from collections.abc import Iterable


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether elements are not in memory as they are: still to be negated or conjugated, or zeros
    without memory. Kernels do not know it.
    """
    return tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()


@dataclass(frozen=True, slots=True)
class SavedForm:
    """How a saved tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    resolved: bool
    """Whether its elements are in memory as they are."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> SavedForm:
        """The form of a tensor."""
        shape, stride = tuple(tensor.shape), tensor.stride()
        return cls(shape, stride, tensor.dtype, tensor.device, not is_lazy(tensor))

    def restored(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in this form; RuntimeError where its shape or device is another."""
        found = SavedForm.of(tensor)
        if found == self:
            return tensor
        if found.shape != self.shape or found.device != self.device:
            raise RuntimeError(
                f"a hook on saved tensors unpacked a tensor of shape {list(found.shape)} on "
                f"{found.device} in the place of one of shape {list(self.shape)} on {self.device}; "
                f"return one of the shape and device that pack_hook was given"
            )
        if torch.is_grad_enabled() and tensor.requires_grad:
            return _apply(tensor, self)  # type: ignore[no-any-return]
        return self._copy(tensor)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return laid_out(tensor.resolve_conj().resolve_neg().to(self.dtype), self.stride)


def forms_of(tensors: Iterable[torch.Tensor]) -> list[SavedForm]:
    """The forms of tensors that hooks are to pack."""
    return list(map(SavedForm.of, tensors))


def restored(tensors: Iterable[torch.Tensor], forms: Iterable[SavedForm]) -> tuple[Any, ...]:
    """What hooks have unpacked, in the forms of what they packed."""
    return tuple([form.restored(tensor) for tensor, form in zip(tensors, forms, strict=True)])


class _Restored(torch.autograd.Function):
    """The same numbers in another form: derivatives pass."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, form: SavedForm) -> torch.Tensor:
        ctx.dtype = tensor.dtype
        return form._copy(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient.to(ctx.dtype), None


_apply: Any = super(torch.autograd.Function, _Restored).apply  # type: ignore[misc]
