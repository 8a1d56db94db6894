"""Numbers that a dtype does not hold: eager refuses to store them (`torch.full((2,), 1e6,
dtype=torch.float16)`), where arithmetic with them rounds or wraps around.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from flambeau_prims.spec import Spec

_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def refuse_overflow(result: Spec, number: Any) -> None:
    """Raise eager's error where it stores a number in a tensor whose dtype does not hold it.

    Tensors and symbolic numbers are let through, and negative numbers that an unsigned dtype wraps
    around. On a CPU a single element becomes infinite in half precision.
    """
    if type(number) not in (int, float) or _is_held(result.dtype, number):
        return
    if result.dtype in _HALVES and result.device.type == "cpu" and result.numel == 1:
        return
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # type: ignore[attr-defined]
        # Words the error as this version of torch does.
        torch.empty((2,), dtype=result.dtype, device="cpu").fill_(number)


def _is_held(dtype: torch.dtype, number: int | float) -> bool:
    if dtype in _HALVES or dtype is torch.float32:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    if dtype not in _INTEGERS:
        return True
    info = torch.iinfo(dtype)
    if isinstance(number, int):
        return (-info.max if info.min == 0 else info.min) <= number <= info.max
    return math.isfinite(number) and float(info.min) <= number <= float(info.max)
