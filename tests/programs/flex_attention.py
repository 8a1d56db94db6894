"""Score and mask functions of flex_attention, and inputs, on any device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

LENGTH = 70


def functions(device: str) -> SimpleNamespace:
    """Functions of a score and its position that read tensors on a device."""
    slopes = torch.rand(4, device=device)
    bias = torch.randn(4, LENGTH, LENGTH, device=device)
    documents = torch.arange(LENGTH, device=device) // 20

    def relative(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + (i - j) * 0.01

    def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + slopes[h] * (j - i)

    def table(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.tanh(score / 5) * 5 + bias[h, i, j]

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def window(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i - j).abs() <= 7

    def document(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (documents[i] == documents[j]) & (i >= j)

    def nothing_for_some_rows(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i > 5) & (j <= i)

    each = (relative, alibi, table, causal, window, document, nothing_for_some_rows)
    return SimpleNamespace(**{function.__name__: function for function in each})


SCORES = (None, "relative", "alibi", "table")
MASKS = (None, "causal", "window", "document")


def qkv(
    device: str,
    *,
    kv_heads: int = 4,
    length: int = LENGTH,
    dtype: torch.dtype = torch.float32,
    width: int = 24,
) -> list[torch.Tensor]:
    """Query (2, 4, length, 16), key and value (2, kv_heads, length, 16 and `width`)."""
    shapes = [(2, 4, length, 16), (2, kv_heads, length, 16), (2, kv_heads, length, width)]
    return [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]
