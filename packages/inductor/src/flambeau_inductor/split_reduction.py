"""Split a long reduction with few results in two, so that a GPU has enough independent work.

    s: f32[64] = sum(x: f32[100000, 64], (0,))   ->   p: f32[128, 64] = sums of chunks of 782 rows
                                                 s: f32[64] = sum(p, (0,))

The last chunk may be short: beyond the end is the reduction's identity. On a CPU the
code generator shares a long reduction out to threads itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
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

MOST_SHARED_COLUMNS = 8192
"""Longest rows of a kernel on a GPU that reduces rows and columns: it keeps the latter's sums."""

MOST_KEPT_COLUMNS = 16384
"""The sums of columns that such a kernel keeps, over all its reductions."""

FEWEST_SHARED_ROWS = 64
"""With fewer rows there is nothing to gain."""

FEWEST_SHARES, SHORTEST_SHARE, LONGEST_SHARE = 64, 16, 128
"""Shares of rows for the cores of a CPU; the length from which a share is worth its partial result,
and the length that bounds rounding errors.
"""

COLUMNS_PER_PROGRAM = 64
SHORTEST_CHUNK = 256

SHORTEST_COLUMN_CHUNK = 64
"""The same where a program takes several columns."""

SHORTEST_SLICE, MOST_SLICES = 1024, 8
"""A reduction over several dims is cut at each place of the outermost one if what remains is so
long, and if that makes only so many times the programs that are needed: a chunk over two dims costs
divisions for each element.
"""

SHORTEST_RUN = 64
"""Bytes in a row that a program may read of each place: with fewer, neighbouring rows are reduced
together.
"""

PARTIAL_RESULTS = {
    "sum_exp": ("amax", "sum_exp"),
    "squared_deviations": ("mean", "squared_deviations"),
}
"""The primitives of a chunk that combine to one of a whole row, where that needs several."""

SPLITTABLE = frozenset(("sum", "prod", "amax", "amin", "any", "all", "mean", *PARTIAL_RESULTS))

EVEN_ONLY = frozenset(("squared_deviations", "mean"))
"""Primitives without an identity: no element may lie beyond the end of a chunk."""


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dims that a reduction removes, in the operand's order."""
    dims = node.args[1]
    return (dims,) if isinstance(dims, int) else tuple(sorted(dims))


@dataclass(frozen=True)
class Split:
    """How a reduction is cut: one partial result for each index of the dims `outer` and `run`, and
    for each of `parts` chunks of the dim `cut`.

    `outer` lie outside of `cut` in memory, `run` inside of what the reduction keeps.
    """

    cut: int
    parts: int = 1
    outer: tuple[int, ...] = ()
    run: tuple[int, ...] = ()

    @property
    def whole(self) -> tuple[int, ...]:
        """The dims that partial results keep, in the order of memory but for `cut`."""
        return (*self.outer, *self.run)

    @property
    def splits(self) -> bool:
        """Whether there is more than one partial result."""
        return self.parts > 1 or bool(self.whole)

    def count(self, spec: Spec) -> int:
        """The number of partial results of one result."""
        return self.parts * prod(hint_of(spec.shape[d]) for d in self.whole)


def choose_split(node: Node, dims: tuple[int, ...], options: InductorOptions) -> Split:
    """How to cut a reduction, outermost dims in memory first."""
    spec = node.args[0].spec
    if node.op.name not in SPLITTABLE or not dims or 0 in spec.shape:
        return Split(dims[0] if dims else 0)
    run = short_run(spec, dims, options)
    order = sorted(dims, key=lambda d: (-hint_of(spec.stride[d]), d))
    order = [d for d in order if d not in run and spec.shape[d] != 1] or order[:1]
    wanted = wanted_parts(spec, dims, options)
    if options.reduction_parts is None and wanted > 1 and not run:
        size, row = spec.shape[order[0]], row_of(spec, dims)
        slices_are_rows = isinstance(size, int) and not row.column and size <= MOST_SLICES * wanted
        if slices_are_rows and size > 1 and row.reduced // size >= SHORTEST_SLICE:
            return Split(order[0], size)
    outer: list[int] = []
    while options.reduction_parts is None and len(order) > 1:
        size = spec.shape[order[0]]
        if not isinstance(size, int) or 2 * size > wanted:
            break
        outer.append(order.pop(0))
        wanted //= size
    size = spec.shape[order[0]]
    wanted = min(wanted, hint_of(size))
    if wanted < 2:
        return Split(order[0], 1, tuple(outer), run)
    even = even_parts(size, wanted)
    if node.op.name in EVEN_ONLY or (options.reduction_parts is None and 2 * even > wanted):
        wanted = even
    return Split(order[0], wanted, tuple(outer), run)


def short_run(spec: Spec, dims: tuple[int, ...], options: InductorOptions) -> tuple[int, ...]:
    """The reduced dims inside of what a long reduction keeps, if a row is made of runs that are
    shorter than what memory moves at once (the channels of a group of a channels-last image): each
    program would read all the lines of memory for a part of each.
    """
    if spec.device.type != "cuda" or options.reduction_parts is not None:
        return ()
    shape, stride = ([hint_of(size) for size in sizes] for sizes in (spec.shape, spec.stride))
    kept = min((stride[d] for d in range(spec.ndim) if d not in dims and shape[d] > 1), default=0)
    run = tuple(d for d in dims if stride[d] < kept and shape[d] > 1)
    length = prod(shape[d] for d in run) * spec.dtype.itemsize
    others = prod(shape[d] for d in dims if d not in run)
    static = all(isinstance(spec.shape[d], int) for d in run)
    if not static or length >= SHORTEST_RUN or length * others <= KEPT_ROW * spec.dtype.itemsize:
        return ()
    return tuple(sorted(run, key=lambda d: -stride[d])) if others > 1 else ()


def wanted_parts(spec: Spec, dims: tuple[int, ...], options: InductorOptions) -> int:
    """How many chunks keep the device busy."""
    if options.reduction_parts is not None:
        return max(1, options.reduction_parts)
    if spec.device.type != "cuda":
        return 1
    row = row_of(spec, dims)
    if short_run(spec, dims, options):
        run = prod(hint_of(spec.shape[d]) for d in short_run(spec, dims, options))
        row = RowShape(row.reduced // run, row.kept * run, True)
    if not row.column and row.reduced <= PERSISTENT_LIMIT:
        return 1  # one program holds a row, and what reads the result fuses with it
    programs = -(-row.kept // COLUMNS_PER_PROGRAM) if row.column else row.kept
    enough = enough_programs(spec.device.index)
    if programs >= enough:
        return 1
    shortest = SHORTEST_COLUMN_CHUNK if row.column else SHORTEST_CHUNK
    return max(1, min(2 * enough // max(programs, 1), row.reduced // shortest))


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


def choose_shares(spec: Spec, dims: tuple[int, ...], options: InductorOptions) -> Size:
    """Among how many shares the rows of a reduction over rows are dealt, if a kernel takes it over
    that reduces the rows, too; 0 if it should not.
    """
    row = row_of(spec, dims)
    if options.reduction_parts is not None:
        return 0
    if spec.device.type != "cuda":
        if row.kept > CACHED_ROW or row.reduced < 2 * FEWEST_SHARED_ROWS:
            return 0
        rows: Size = 1
        for d in dims:
            rows = spec.shape[d] * rows
        length = min(LONGEST_SHARE, max(SHORTEST_SHARE, row.reduced // FEWEST_SHARES))
        return ceil_div(rows, length)
    static = all(isinstance(size, int) for d, size in enumerate(spec.shape) if d not in dims)
    if not static or not row.kept <= MOST_SHARED_COLUMNS or row.reduced < FEWEST_SHARED_ROWS:
        return 0
    return min(enough_shares(spec.device.index), 1 << (row.reduced // 4).bit_length())


@lru_cache
def enough_shares(device: int | None) -> int:
    """A power of two of shares that keeps a GPU busy."""
    return 1 << (enough_programs(device).bit_length() - 1)


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
