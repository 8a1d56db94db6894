"""Which tangents a compiled backward gets that its kernels cannot read as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Iterable

# Loops and no generators, and few look-ups: this is part of each backward.
_Tensor = torch.Tensor
_functorch = torch._C._functorch
_is_batched, _is_legacy = _functorch.is_batchedtensor, _functorch.is_legacy_batchedtensor


def are_plain(tangents: Iterable[torch.Tensor | None]) -> bool:
    """Whether there are all tangents, and each has memory that kernels read; False where that takes
    more than a look.
    """
    for x in tangents:  # noqa: SIM110
        if type(x) is not _Tensor or _is_batched(x) or _is_legacy(x):
            return False
    return True


def has_batches(tangents: Iterable[torch.Tensor | None]) -> bool:
    """Whether one of the tangents is a batch."""
    for x in tangents:  # noqa: SIM110
        if x is not None and (_is_batched(x) or _is_legacy(x)):
            return True
    return False


def has_wrappers(tangents: Iterable[torch.Tensor | None]) -> bool:
    """Whether one of the tangents consists of other tensors, and so has no memory."""
    for x in tangents:
        kind = type(x)
        if kind is not _Tensor and x is not None and is_wrapper_subclass(kind):
            return True
    return False
