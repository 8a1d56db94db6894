"""Attention by score and mask functions, for `tools.bench kernels`: B=4, H=16, S=4096, bfloat16;
and decoding beside a long cache."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS, LENGTH = 4, 16, 4096
SEQUENCES, SHARING, CACHED = 8, 4, 32768
"""Decoding: sequences with a cache each, heads that share a head of keys, cached positions."""


@cache
def documents(device: str) -> torch.Tensor:
    """The document of each position."""
    return torch.arange(LENGTH, device=device, dtype=torch.int32) // 700


@cache
def block_mask(name: str, device: str) -> Any:
    """A mask by its name; None for "full"."""
    which = documents(device)
    masks = {
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j <= 512),
        "document": lambda b, h, i, j: (which[i] == which[j]) & (i >= j),
        "alibi": lambda b, h, i, j: i >= j,
    }
    if name not in masks:
        return None
    return create_block_mask(masks[name], None, None, LENGTH, LENGTH, device=device)


@cache
def slopes(device: str) -> torch.Tensor:
    """What a head adds for each position of distance."""
    return torch.exp2(-8 * torch.arange(1, HEADS + 1, device=device) / HEADS)


def attend(name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    """Attention under the mask of a name."""
    device = str(query.device)
    by_distance = slopes(device)
    score = (lambda s, b, h, i, j: s + by_distance[h] * (j - i)) if name == "alibi" else None
    return flex_attention(query, key, value, score, block_mask(name, device))


def inputs(width: int, device: str) -> tuple[torch.Tensor, ...]:
    """Query, key and value."""
    shape = (BATCH, HEADS, LENGTH, width)
    return tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))


def decode(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    """The next tokens beside a cache."""
    return flex_attention(query, key, value, enable_gqa=True)


def decoding_inputs(queries: int, width: int, device: str) -> tuple[torch.Tensor, ...]:
    """Few queries, many keys."""
    shapes = [(SEQUENCES, SHARING * 8, queries, width), *[(SEQUENCES, 8, CACHED, width)] * 2]
    return tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes)


FLEX_CASES = {
    f"flex_{name}_{width}{'_training' * training}": (
        partial(attend, name),
        partial(inputs, width),
        training,
    )
    for name in ("causal", "window", "document", "alibi", "full")
    for width in (64, 128)
    for training in (False, True)
} | {
    f"flex_decode_{queries}_{width}": (decode, partial(decoding_inputs, queries, width), False)
    for queries in (1, 16)
    for width in (64, 128)
}
"""Name -> function, inputs by device, and whether the backward is timed, too."""
