"""Writes through a mask, so that they can be differentiated: how many elements a mask selects is in
the data, which of them is not.

    x[mask] = e         x.copy_(torch.where(mask, e, x)),  with the mask's shape ended by 1s
    x[mask] = rows      the same, of rows[k] at the k-th element that the mask selects; the number
                        of rows is checked

Eager's gradient of `e` is the sum of the selected rows of x's gradient, a tensor as long as the
mask has True elements; that of `where` is the same sum over all rows, those that are not selected
as zeros.
"""

from __future__ import annotations

import operator
from typing import Any

import torch


def set_item(subject: Any, key: Any, value: Any) -> None:
    """`subject[key] = value`."""
    if not _selects_with_gradient(subject, key, value):
        operator.setitem(subject, key, value)
        return
    rest = subject.ndim - key.ndim
    if value.ndim > rest:
        value = value[0] if value.shape[0] == 1 else _spread(key, value)
    mask = key.reshape((*key.shape, *(1,) * rest))
    subject.copy_(torch.where(mask, value, subject))


def _selects_with_gradient(subject: Any, key: Any, value: Any) -> bool:
    """Whether a mask selects where to write a value that a gradient is wanted of."""
    if not all(isinstance(part, torch.Tensor) for part in (subject, key, value)):
        return False
    if key.dtype is not torch.bool or not (value.requires_grad and torch.is_grad_enabled()):
        return False
    rest = subject.ndim - key.ndim
    if rest < 0 or key.shape != subject.shape[: key.ndim] or key.device != subject.device:
        return False
    if value.dtype != subject.dtype or value.device != subject.device:
        return False
    if value.ndim <= rest or (value.ndim == rest + 1 and value.shape[0] == 1):
        return True
    # A failing check of a host is an error, which a call recovers from; of an accelerator it is the
    # end.
    return value.ndim == rest + 1 and key.device.type == "cpu"


def _spread(mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The row for each element of the mask: the k-th for the k-th True one, any for the others."""
    count = rows.shape[0]
    text = "shape mismatch: value tensor cannot be broadcast to what the mask selects"
    torch._assert_async(mask.sum() == count, text)
    if count == 0:
        return rows.sum(0)  # of which nothing is selected
    places = (mask.reshape(-1).cumsum(0) - 1).clamp(0, count - 1)
    return rows.index_select(0, places).reshape((*mask.shape, *rows.shape[1:]))
