"""Split a long reduction with few results in two, so that a GPU has enough independent work.

    s: f32[64] = sum(x: f32[100000, 64], (0,))   ->   p: f32[128, 64] = sums of chunks of 782 rows
                                                 s: f32[64] = sum(p, (0,))

The last chunk may be short: beyond the end is the reduction's identity. On a CPU the
code generator shares a long reduction out to threads itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from flambeau_prims.sizes import ceil_div, hint_of

if TYPE_CHECKING:
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size, Spec

PROGRAMS_PER_MULTIPROCESSOR = 2
"""A GPU is busy with so many; a reduction that is split gets twice as many."""

PERSISTENT_LIMIT = 16384
"""Longest row that one program reduces whatever the number of rows."""

KEPT_ROW = 8192
"""Longest rows that a program keeps in registers if it keeps two."""

PERSISTENT_COLUMN = 64
"""The same for rows whose elements lie apart in memory: many rows then share a tile."""

CACHED_ROW = 65536
"""Longest row that a core of a CPU keeps in its second-level cache."""

COLUMNS_PER_PROGRAM = 64
SHORTEST_CHUNK = 256

SHORTEST_COLUMN_CHUNK = 64
"""The same where a program takes several columns."""

SHORTEST_SLICE, MOST_SLICES = 1024, 8
"""A reduction over several dims is cut at each place of the outermost one if what remains is so
long, and if that makes only so many times the programs that are needed: a chunk over two dims costs
divisions for each element.
"""

PARTIAL_RESULTS = {
    "sum_exp": ("amax", "sum_exp"),
    "squared_deviations": ("sum", "squared_deviations"),
}
"""The primitives of a chunk that combine to one of a whole row, where that needs several."""

SPLITTABLE = frozenset(("sum", "prod", "amax", "amin", "any", "all", *PARTIAL_RESULTS))

EVEN_ONLY = frozenset(("squared_deviations",))
"""Primitives without an identity: no element may lie beyond the end of a chunk."""


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dims that a reduction removes, in the operand's order."""
    dims = node.args[1]
    return (dims,) if isinstance(dims, int) else tuple(sorted(dims))


def choose_parts(node: Node, dims: tuple[int, ...], options: InductorOptions) -> int:
    """Into how many chunks to cut the outermost reduced dim in memory; 1: not at all."""
    if node.op.name not in SPLITTABLE or not dims:
        return 1
    spec = node.args[0].spec
    cut = spec.shape[split_dim(node, dims)]
    wanted = wanted_parts(spec, dims, hint_of(cut), options)
    if wanted < 2:
        return 1
    if options.reduction_parts is None and isinstance(cut, int):
        row = row_of(spec, dims)
        slices_are_rows = not row.column and cut <= MOST_SLICES * wanted
        if slices_are_rows and row.reduced // cut >= SHORTEST_SLICE:
            return cut
    if node.op.name in EVEN_ONLY:
        return even_parts(cut, wanted)
    if options.reduction_parts is not None:
        return wanted
    even = even_parts(cut, wanted)
    return even if 2 * even > wanted else wanted


def wanted_parts(spec: Spec, dims: tuple[int, ...], longest: int, options: InductorOptions) -> int:
    """How many chunks keep the device busy; `longest`: no more than these."""
    if options.reduction_parts is not None:
        return max(1, min(options.reduction_parts, longest))
    if spec.device.type != "cuda":
        return 1
    row = row_of(spec, dims)
    if not row.column and row.reduced <= PERSISTENT_LIMIT:
        return 1  # one program holds a row, and what reads the result fuses with it
    programs = -(-row.kept // COLUMNS_PER_PROGRAM) if row.column else row.kept
    enough = enough_programs(spec.device.index)
    if programs >= enough:
        return 1
    shortest = SHORTEST_COLUMN_CHUNK if row.column else SHORTEST_CHUNK
    return min(2 * enough // max(programs, 1), row.reduced // shortest, longest)


@lru_cache
def enough_programs(device: int | None) -> int:
    """How many programs keep a GPU busy: as an H100 where there is no GPU to ask."""
    multiprocessors = 132
    if torch.cuda.is_available():
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return PROGRAMS_PER_MULTIPROCESSOR * multiprocessors


def even_parts(size: Size, most: int) -> int:
    """The greatest number of equal chunks of a dim, up to `most`; 1 for a symbolic size."""
    if not isinstance(size, int):
        return 1
    return next(parts for parts in range(min(most, max(size, 1)), 0, -1) if size % parts == 0)


@dataclass(frozen=True)
class RowShape:
    """Likely numbers of elements that a reduction reduces to one, and of results; `column`:
    whether neighbours in memory belong to different results.
    """

    reduced: int
    kept: int
    column: bool


def row_of(spec: Spec, dims: tuple[int, ...]) -> RowShape:
    """The shape of a reduction of a tensor over dims."""
    reduced = kept = 1
    for d, size in enumerate(spec.shape):
        if d in dims:
            reduced *= hint_of(size)
        else:
            kept *= hint_of(size)
    innermost = min((hint_of(spec.stride[d]) for d in dims), default=1)
    column = any(d not in dims and 0 < hint_of(s) < innermost for d, s in enumerate(spec.stride))
    return RowShape(reduced, kept, column)


def reads_row_again(node: Node, dims: tuple[int, ...]) -> bool:
    """Whether two passes over a row would read it from memory twice: no program and no cache of a
    core keeps it.
    """
    spec = node.args[0].spec
    row = row_of(spec, dims)
    if spec.device.type == "cuda":
        return row.reduced > (PERSISTENT_COLUMN if row.column else KEPT_ROW)
    return row.reduced > CACHED_ROW


def split_dim(node: Node, dims: tuple[int, ...]) -> int:
    """The reduced dim that is outermost in memory."""
    stride = node.args[0].spec.stride
    return max(dims, key=lambda d: (hint_of(stride[d]), -d))


def chunk_length(size: Size, parts: int) -> Size:
    """The length of a chunk, so that `parts` of them cover the dim."""
    return ceil_div(size, parts)


def identity(name: str, dtype: torch.dtype) -> bool | int | float:
    """The value whose accumulation changes no result."""
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all"):
        return 1
    if dtype is torch.bool:
        return name == "amin"
    if dtype.is_floating_point:
        return float("inf") if name == "amin" else float("-inf")
    limits = torch.iinfo(dtype)
    return limits.min if name == "amax" else limits.max
