"""`torch.nn.attention.flex_attention` in torch operators: what its higher-order operator computes.

    flex_attention(q, k, v, score_mod, block_mask)
    ->  softmax(where(mask(b, h, i, j), score_mod(q @ k^T * scale, b, h, i, j), -inf)) @ v

The program's functions see one score and its position; they are mapped over all of them. On a GPU
the two products are operators of `flambeau_prims.flex_attention`, from which a compiler makes one
kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.flex_attention import flex_attend, flex_scores

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_BLOCK = 1 << 30
"""The block of a mask that was made for no mask."""
_AXES = 4
"""Batch, head, query and key position."""


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[torch.Tensor, ...] = (),
    mask_mod_other_buffers: tuple[torch.Tensor, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The attended values (B, Hq, L, Ev) in the order of `query`'s strides, and the log-sum-exp and
    the maximum of each row of scores (B, Hq, L), both divided by log(2).

    `query` is (B, Hq, L, E); `key` (B or 1, Hkv, S, E) and `value` (B or 1, Hkv, S, Ev) serve
    Hq / Hkv heads each. `kernel_options` are about Triton kernels, which only a GPU has.
    """
    if query.is_cuda:
        return _attend_in_blocks(
            query, key, value, score_mod, block_mask, scale, _options_text(kernel_options),
            score_mod_other_buffers, mask_mod_other_buffers,
        )  # fmt: skip
    batch, heads = query.shape[:2]
    key, value = (_for_each_head(one, batch, heads) for one in (key, value))
    precise = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(precise) @ key.to(precise).transpose(-2, -1)) * scale
    places = [torch.arange(size, device=scores.device) for size in scores.shape]
    seen = _mapped(block_mask[-1], 0, len(mask_mod_other_buffers))(*places, *mask_mod_other_buffers)
    changed = _mapped(score_mod, 1, len(score_mod_other_buffers))(
        scores, *places, *score_mod_other_buffers
    )
    scores = torch.where(
        seen, changed, torch.full((), -math.inf, dtype=precise, device=seen.device)
    )
    unseen = (scores == -math.inf).all(-1)
    log_sum = torch.where(unseen, -math.inf, scores.logsumexp(-1))
    weights = torch.where(unseen.unsqueeze(-1), 0.0, scores.softmax(-1))
    attended = weights.to(query.dtype) @ value.to(query.dtype)
    most = scores.amax(-1)
    return _in_order_of(attended, query), log_sum / math.log(2), most / math.log(2)


def _attend_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    options: str,
    score_buffers: tuple[torch.Tensor, ...],
    mask_buffers: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same by operators that know which blocks of scores are computed."""
    tables, (query_block, key_block) = block_mask[2:10], block_mask[-3:-1]
    whole = query_block >= _LARGEST_BLOCK or key_block >= _LARGEST_BLOCK
    rows, columns = (
        [one for one in side if one is not None and not whole] for side in (tables[:4], tables[4:])
    )
    blocks = (rows, columns, query_block, key_block, options)
    scores = flex_scores(query, key, scale, *blocks)
    places = [torch.arange(size, device=scores.device) for size in scores.shape]
    seen = _mapped(block_mask[-1], 0, len(mask_buffers))(*places, *mask_buffers)
    changed = _mapped(score_mod, 1, len(score_buffers))(scores, *places, *score_buffers)
    return flex_attend(changed.to(scores.dtype), seen, query, value, *blocks)


def _options_text(options: dict[str, Any]) -> str:
    """The options that the program gave, without those with which `flex_attention` completes them
    (literals here, since names would be guarded).
    """
    texts = [f"{name}={options[name]!r}" for name in sorted(options)]
    defaults = (
        "BACKEND='AUTO'", "PRESCALE_QK=False", "ROWS_GUARANTEED_SAFE=False",
        "BLOCKS_ARE_CONTIGUOUS=False", "WRITE_DQ=True",
    )  # fmt: skip
    return ";".join(
        text for text in texts if text not in defaults and not text.startswith("OUTPUT_")
    )


def _for_each_head(x: torch.Tensor, batch: int, heads: int) -> torch.Tensor:
    x = x.repeat_interleave(heads // x.shape[1], 1)
    return x.expand(batch, *x.shape[1:])


def _mapped(
    function: Callable[..., Any], scores: int, buffers: int, axis: int = _AXES - 1
) -> Callable[..., Any]:
    """`function` of one position over all positions; `axis` is the next one, innermost first."""
    if axis < 0:
        return function
    places = [None] * _AXES
    places[axis] = 0  # type: ignore[call-overload]
    dims = (0,) * scores + tuple(places) + (None,) * buffers
    return _mapped(torch.vmap(function, dims), scores, buffers, axis - 1)


def _in_order_of(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`x` laid out densely: the last dim innermost, the others as in another tensor."""
    strides, last = like.stride(), like.ndim - 1
    # As eager: of equal strides, the later dim is the inner one.
    order = sorted(range(last), key=lambda dim: (-strides[dim], dim))
    dense = x.permute(*order, last).contiguous()
    return dense.permute(*(order.index(dim) for dim in range(last)), last)
