"""Which tangents a compiled backward gets that its kernels cannot read as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Iterable

_functorch = torch._C._functorch
_is_batched, _is_legacy = _functorch.is_batchedtensor, _functorch.is_legacy_batchedtensor


def has_batches(tangents: Iterable[torch.Tensor | None]) -> bool:
    """Whether one of the tangents is a batch."""
    return any(x is not None and (_is_batched(x) or _is_legacy(x)) for x in tangents)


def has_wrappers(tangents: Iterable[torch.Tensor | None]) -> bool:
    """Whether one of the tangents consists of other tensors, and so has no memory."""
    return any(
        x is not None and type(x) is not torch.Tensor and is_wrapper_subclass(type(x))
        for x in tangents
    )
