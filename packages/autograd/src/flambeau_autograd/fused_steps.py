"""Writes to parameters that move no version counter: steps of optimizers with `fused=True`.

The runtime has the like: either package is used without the other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable

_steps: Any = WeakTensorKeyDictionary()
"""Parameter -> its fused steps since `watch_optimizers`."""


@lru_cache(maxsize=1)
def watch_optimizers() -> None:
    """Count the fused steps of all optimizers from now on."""
    register_optimizer_step_post_hook(_count)


def fused_steps(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """The position and count of each tensor that had such steps."""
    if not _steps:
        return ()
    counts = [_steps.get(tensor, 0) for tensor in tensors]
    return tuple((position, count) for position, count in enumerate(counts) if count)


def _count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():  # what is compiled moves the version counters
        return
    for group in optimizer.param_groups:
        if group.get("fused"):
            for parameter in group["params"]:
                _steps[parameter] = _steps.get(parameter, 0) + 1
