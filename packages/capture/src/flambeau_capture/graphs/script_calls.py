"""Calls of functions that torch.jit has scripted or traced.

    scripted(x, 2)   ->   ScriptCall scripted(x, 2)

A tracer sees the ATen calls that TorchScript's interpreter makes on fake tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from flambeau_prims.fake import FakeTensor


@dataclass(frozen=True)
class ScriptCall:
    """`function`, a `torch.jit.ScriptFunction`, whose profiling executor sees no fake tensors."""

    function: Any

    @property
    def __name__(self) -> str:
        return str(self.function.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves((args, kwargs))):
            return self.function(*args, **kwargs)
        with torch.jit.optimized_execution(False):
            return self.function(*args, **kwargs)
