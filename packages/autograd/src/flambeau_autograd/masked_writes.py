"""Writes of one value through a mask, so that they can be differentiated: how many elements a mask selects is in the data, which of them is not.

    x[mask] = e         x.copy_(torch.where(mask, e, x)),  with the mask's shape ended by 1s

Eager's gradient of `e` is the sum of the selected rows of x's gradient, a tensor as long as the mask has True elements; that of `where` is the same
sum over all rows, those that are not selected as zeros.
"""

from __future__ import annotations

import operator
from typing import Any

import torch


def set_item(subject: Any, key: Any, value: Any) -> None:
    """`subject[key] = value`."""
    if _selects_with_gradient(subject, key, value):
        rest = subject.ndim - key.ndim
        if value.ndim > rest:
            value = value[0]
        mask = key.reshape((*key.shape, *(1,) * rest))
        subject.copy_(torch.where(mask, value, subject))
    else:
        operator.setitem(subject, key, value)


def _selects_with_gradient(subject: Any, key: Any, value: Any) -> bool:
    """Whether a mask selects where to write one value that a gradient is wanted of, which all that is selected shares."""
    if not all(isinstance(part, torch.Tensor) for part in (subject, key, value)):
        return False
    if key.dtype is not torch.bool or not (value.requires_grad and torch.is_grad_enabled()):
        return False
    rest = subject.ndim - key.ndim
    if rest < 0 or key.shape != subject.shape[: key.ndim] or key.device != subject.device:
        return False
    if value.dtype != subject.dtype or value.device != subject.device:
        return False
    return value.ndim <= rest or (value.ndim == rest + 1 and value.shape[0] == 1)
