"""NumPy's dtypes and torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flambeau_capture.reasons import GraphBreak

_PAIRS = (
    (np.bool_, torch.bool), (np.uint8, torch.uint8), (np.int8, torch.int8), (np.int16, torch.int16), (np.int32, torch.int32),
    (np.int64, torch.int64), (np.float16, torch.float16), (np.float32, torch.float32), (np.float64, torch.float64),
    (np.complex64, torch.complex64), (np.complex128, torch.complex128),
)  # fmt: skip
TO_TORCH: dict[Any, torch.dtype] = {np.dtype(kind): dtype for kind, dtype in _PAIRS}
TO_NUMPY: dict[torch.dtype, Any] = {dtype: np.dtype(kind) for kind, dtype in _PAIRS}
NUMBERS = (bool, int, float, complex)


def torch_dtype(dtype: Any) -> torch.dtype:
    """torch's dtype for anything that `np.dtype` takes."""
    found = TO_TORCH.get(np.dtype(dtype))
    if found is None or not np.dtype(dtype).isnative:
        raise GraphBreak("numpy-dtype", f"an array of dtype {np.dtype(dtype)}")
    return found


def abstract(value: Any) -> Any:
    """How a Python number takes part in promotion (NEP 50): by its type, weakly; a bool as the dtype bool."""
    kind = type(value)
    if kind is bool or kind is torch.SymBool:
        return np.dtype(bool)
    if kind is torch.SymInt:
        return int
    return float if kind is torch.SymFloat else kind
