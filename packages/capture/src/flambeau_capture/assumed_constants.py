"""Results that a program declares to be constant (`torch.compiler.assume_constant_result`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, eq=False)
class AssumedConstant:
    """A call of a marked function, and what it returned."""

    function: types.FunctionType
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def call_marked_function(
    function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a marked function natively: no mode of torch sees what it does."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        return function(*args, **kwargs)
