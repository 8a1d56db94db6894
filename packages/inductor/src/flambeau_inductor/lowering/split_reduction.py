"""Split a long reduction with few results in two, so that a GPU has enough independent work.

    s: f32[64] = sum(x: f32[100000, 64], (0,))   ->   p: f32[128, 64] = sums of chunks of 782 rows
                                                 s: f32[64] = sum(p, (0,))

The last chunk may be short: beyond the end is the reduction's identity. On a CPU the
code generator shares a long reduction out to threads itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.sizes import ceil_div, hint_of

if TYPE_CHECKING:
    from flambeau_inductor.ir import Number
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size

ENOUGH_PROGRAMS = 256
"""A GPU of a hundred or two multiprocessors is busy with this many."""

PERSISTENT_LIMIT = 4096
"""Longest row that a program keeps in registers."""

COLUMNS_PER_PROGRAM = 64
SHORTEST_CHUNK = 256

SPLITTABLE = frozenset(("sum", "prod", "amax", "amin", "any", "all"))


def choose_parts(node: Node, dims: tuple[int, ...], options: InductorOptions) -> int:
    """Into how many chunks to cut the outermost reduced dim in memory; 1: not at all."""
    if node.op.name not in SPLITTABLE or not dims:
        return 1
    spec = node.args[0].spec
    longest = hint_of(spec.shape[split_dim(node, dims)])
    if options.reduction_parts is not None:
        return max(1, min(options.reduction_parts, longest))
    if spec.device.type != "cuda":
        return 1
    reduced = kept = 1
    for d, size in enumerate(spec.shape):
        if d in dims:
            reduced *= hint_of(size)
        else:
            kept *= hint_of(size)
    innermost = min((hint_of(spec.stride[d]) for d in dims), default=1)
    column = any(d not in dims and 0 < hint_of(s) < innermost for d, s in enumerate(spec.stride))
    if not column and reduced <= PERSISTENT_LIMIT:
        return 1  # one program holds a row, and what reads the result fuses with it
    programs = -(-kept // COLUMNS_PER_PROGRAM) if column else kept
    if programs >= ENOUGH_PROGRAMS:
        return 1
    wanted = min(2 * ENOUGH_PROGRAMS // max(programs, 1), reduced // SHORTEST_CHUNK, longest)
    if wanted < 2:
        return 1
    even = next((parts for parts in range(wanted, wanted // 2, -1) if longest % parts == 0), wanted)
    return even if isinstance(spec.shape[split_dim(node, dims)], int) else wanted


def split_dim(node: Node, dims: tuple[int, ...]) -> int:
    """The reduced dim that is outermost in memory."""
    stride = node.args[0].spec.stride
    return max(dims, key=lambda d: (hint_of(stride[d]), -d))


def chunk_length(size: Size, parts: int) -> Size:
    """The length of a chunk, so that `parts` of them cover the dim."""
    return ceil_div(size, parts)


def identity(name: str, dtype: torch.dtype) -> Number:
    """The value whose accumulation changes no result."""
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all"):
        return 1
    if dtype is torch.bool:
        return name == "amin"
    if dtype.is_floating_point:
        return float("-inf") if name == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if name == "amax" else limits.max
