"""Tensors arranged in blocks: on a diagonal, in chunks, in groups of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims import sizes
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.strides import product, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.builder import Builder
    from flambeau_prims.graph import Value
    from flambeau_prims.spec import Size

aten = torch.ops.aten


@decomposition(aten.block_diag.default)
def block_diag(b: Builder, tensors: Sequence[Value]) -> Value:
    """Matrices on the diagonal of a matrix of zeros; vectors are rows."""
    dtype, width = b.result.dtype, b.result.shape[1]
    zero = False if dtype is torch.bool else 0
    rows = []
    before: Size = 0
    for x in tensors:
        x = b.cast(x, dtype)
        if x.spec.ndim < 2:
            x = b.reshape(x, (1, x.spec.numel))
        own = x.spec.shape[1]
        rows.append(b.pad(x, (0, before), (0, width - before - own), zero))
        before = before + own
    return b.cat(rows, 0)


@decomposition(aten._chunk_cat.default)
def chunk_cat(b: Builder, tensors: Sequence[Value], dim: int, num_chunks: int) -> Value:
    """Each tensor in so many chunks along a dim, the last padded with zeros; the elements of a
    chunk in a row, those of all tensors joined.
    """
    if any(not sizes.known_ne(x.spec.numel, 0) for x in tensors):
        return NotImplemented  # eager refuses empty tensors
    first = tensors[0].spec
    dim = wrap_dim(dim, first.ndim)
    for x in tensors:
        rows = x.spec.shape[:dim]
        if x.spec.dtype is not first.dtype or x.spec.ndim <= dim:
            return NotImplemented  # eager's error
        if not all(map(sizes.known_eq, rows, first.shape[:dim])):
            return NotImplemented  # eager's error
    parts = []
    for x in tensors:
        size = x.spec.shape[dim]
        missing = (size + num_chunks - 1) // num_chunks * num_chunks - size
        ends = [missing if d == dim else 0 for d in range(x.spec.ndim)]
        zero = False if x.spec.dtype is torch.bool else 0
        x = b.pad(x, tuple([0] * x.spec.ndim), tuple(ends), zero)
        rest = product(x.spec.shape[dim:]) // num_chunks
        parts.append(b.reshape(x, (*x.spec.shape[:dim], num_chunks, rest)))
    return b.cat(parts, dim + 1)


@decomposition(aten.channel_shuffle.default)
def channel_shuffle(b: Builder, x: Value, groups: Size) -> Value:
    """Channels in groups, taken in turn from each group."""
    batch, channels, *rest = x.spec.shape
    split = b.reshape(x, (batch, groups, channels // groups, *rest))
    order = (0, 2, 1, *range(3, split.spec.ndim))
    return b.reshape(b.permute(split, order), x.spec.shape)
