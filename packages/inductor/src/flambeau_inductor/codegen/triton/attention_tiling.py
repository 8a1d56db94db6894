"""Tiles, warps and stages of a kernel of attention, from a small model.

forward, heads of 64 in bfloat16             ->  64 queries, 64 keys, 4 warps, 3 stages
the same, a block mask, scores as they are   ->  64 queries, 128 keys, 4 warps, 2 stages
forward, heads of 128                        ->  128 queries, 64 keys, 4 warps, 2 stages
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.attention import GRADIENTS, SCORES
from flambeau_inductor.attention_options import FORWARD, KEY_VALUE_GRADIENTS
from flambeau_inductor.indexing.expressions import evaluate_expr
from flambeau_inductor.ir import Load
from flambeau_prims.unsupported import InvalidOption

if TYPE_CHECKING:
    from flambeau_inductor.attention import Attention, AttentionKernel
    from flambeau_inductor.ir import Integer


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Queries and keys of a tile, warps, stages of the pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


SMALLEST = 16
"""Rows and columns that a product takes at least."""


FEW_QUERIES, FOR_FEW_QUERIES = 64, AttentionTiling(64, 64, 4, 4)
"""Decoding is limited by reads of keys and values: four stages of small tiles, 4.0 TB/s on an H200,
where two stages of 128 keys reach 2.7.
"""


def padded(width: int) -> int:
    """The columns of a tile that holds a head: a power of two that a product takes."""
    return max(16, 1 << (width - 1).bit_length())


def fits(block: int, points: Integer) -> bool:
    """Whether tiles of this many points lie inside."""
    return isinstance(points, int) and points > 0 and points % block == 0


def choose_attention_tiling(kernel: AttentionKernel) -> AttentionTiling:
    """A tiling for the sizes and the dtype of a kernel."""
    one = kernel.attention
    width = max(padded(one.width), padded(one.value_width))
    tiling = _for_heads(one, width)
    if one.form == FORWARD and width <= 128 and one.operand("query").dtype is not torch.float32:
        if isinstance(one.queries, int) and one.queries <= FEW_QUERIES:
            tiling = FOR_FEW_QUERIES
    values = {symbol.name: hint for symbol, hint in zip(kernel.sizes, kernel.hints, strict=True)}
    queries, keys = (
        min(block, max(SMALLEST, padded(int(evaluate_expr(length, values)))))
        for block, length in ((tiling.queries, one.queries), (tiling.keys, one.keys))
    )
    options = one.options
    queries, keys = options.queries or queries, options.keys or keys
    if one.blocks is not None:
        # A tile lies inside one block of the mask; all queries of packed heads lie in one anyway.
        largest = [size & -size for size in (one.blocks.queries, one.blocks.keys)]
        if one.packed:
            largest[0] = queries
        if (options.queries or 0) > largest[0] or (options.keys or 0) > largest[1]:
            raise InvalidOption(
                f"flex_attention: kernel_options ask for tiles of {queries} queries and {keys} "
                f"keys, which do not divide the block mask's blocks of {one.blocks.queries} and "
                f"{one.blocks.keys}"
            )
        queries, keys = min(queries, largest[0]), min(keys, largest[1])
    warps = tiling.warps if queries * keys >= tiling.warps * 1024 else 4
    return AttentionTiling(queries, keys, options.warps or warps, options.stages or tiling.stages)


def _for_heads(one: Attention, width: int) -> AttentionTiling:
    """The tiling of long sequences."""
    if one.operand("query").dtype is torch.float32:
        if one.form == FORWARD:
            return AttentionTiling(64, 32, 4, 2) if width <= 128 else AttentionTiling(32, 32, 4, 1)
        return AttentionTiling(32, 32, 4, 1) if width <= 128 else AttentionTiling(16, 16, 4, 1)
    masked = one.blocks is not None
    if width <= 64:
        if one.form == FORWARD and masked and _keeps(one, SCORES, one.changed):
            return AttentionTiling(64, 128, 4, 2)  # more registers than a score function leaves
        return AttentionTiling(64, 64, 4, 3)
    if width <= 128:
        if one.form == FORWARD:
            return AttentionTiling(128, 128, 8, 2) if masked else AttentionTiling(128, 64, 4, 2)
        if one.form == KEY_VALUE_GRADIENTS and not _keeps(one, GRADIENTS, one.gradient):
            return AttentionTiling(64, 128, 8, 2)  # more registers: a program has two tiles more
        return AttentionTiling(64, 64, 4, 2)
    if one.form == KEY_VALUE_GRADIENTS:
        return AttentionTiling(32, 64, 8, 1)
    return AttentionTiling(64, 64, 4, 2) if one.form == FORWARD else AttentionTiling(64, 32, 4, 2)


def _keeps(one: Attention, buffer: str, value: str | None) -> bool:
    """Whether a value of the body is what it loads from `buffer`: SCORES or GRADIENTS."""
    return any(isinstance(s, Load) and s.buffer == buffer and s.name == value for s in one.body)
