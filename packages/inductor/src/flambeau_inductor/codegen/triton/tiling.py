"""The part of a loop nest that one Triton program takes: tile sizes, warps, launch grid.

The numbers for pointwise kernels are fitted to times on an H200 (`python -m tools.tilings`): the
tile that they choose is near the best one of each kernel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.triton.row_tiles import can_tile
from flambeau_inductor.codegen.triton.vector_bounds import vector_bounds
from flambeau_inductor.codegen.triton.vector_rows import vector_rows
from flambeau_inductor.indexing.expressions import FloorDiv, evaluate_expr, free_names, integer_text
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Constant,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    index_of,
    inner_names,
    operands,
)
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_inductor.scheduler.phases import split_phases
from flambeau_inductor.split_reduction import KEPT_ROW, PERSISTENT_COLUMN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flambeau_inductor.ir import Axis, LoopKernel

SHORT_KEPT_ROW, LONGEST_KEPT_ROW = 4096, 32768
"""Longest rows that a program keeps in registers if it keeps many, and if it keeps one; two:
`KEPT_ROW`.
"""

NARROW_COLUMNS, FEW_PROGRAMS = 16, 128
"""Short columns are tiled as narrow as this where there would be fewer programs than that."""

LONE_ROW = 512
"""From this length on, a tile of a persistent reduction is one row."""

WARP_ROW, MANY_ROWS = 1024, 4096
"""The narrow elements of rows that a warp keeps, and how many rows there are to be; two warps take
two rows that are only summed. Microseconds on an H200 for bfloat16, and with a warp for 512
elements of one row:

    layer norm of 1024, of 512, of 1024 behind GELU      34.8, 36.3; 33.5, 41.4; 54.3, 60.4
    log softmax of 640; softmax, sum of 1024             23.9, 28.2; 34.5, 33.5; 38.4, 41.6
"""

ROW_PART, LONGEST_TILED_ROW = 4096, 45056
"""Longer rows, of which a program keeps one, are kept in parts of this length; the longest."""

HEAVY_ROW, SHORT_HEAVY_ROW = 10, 2048
PER_TILE, PER_THREAD = 8, 32
"""The cost of what is computed of each element from which on a kept row is several tiles, and the
shortest such row; the elements of a tile, and of a row, that a thread has.
"""

SINGLE_PER_TILE, SINGLE_PER_THREAD = 16, 48
"""The same for rows of odd lengths whose elements are read and written one by one."""

LONG_REREAD_ROW = 65536
"""Rows longer than this that are read several times are read by more threads."""

SHARED_WARP = 128
"""Rows of this length and less are sorted several in a program: longer ones would be spread over
its warps.
"""

SHARED_TILE, WAITING_BYTES = 2048, 98304
"""The elements of a tile of rows whose columns are reduced, too, if it has several rows; the bytes
of the tiles behind it that are loaded meanwhile.
"""

COLUMN_TILE, NARROW_COLUMN_TILE, SCANNED_COLUMN_TILE = (64, 32), (32, 16), (32, 128)
"""Rows and lanes of a tile over such rows: 128 bytes of neighbours in memory a step. Where they are
scanned, the lanes of a row lie in few threads, which exchange little.
"""

LOOPED_ROW, LOOPED_HALF_ROW = 2048, 1024
MANY_WARPS = 16
"""Steps along a row in a loop, of 4-byte and of smaller elements. Where a thread has a running
maximum or accesses that are no vectors, it does best with as few elements as that many warps give.
"""

GROUP_BYTES, GROUPED_BYTES = 16, 16384
"""The neighbours in a row that share a running maximum: what a thread reads at once. The bytes of a
step along such rows.
"""

CROSSWISE_TILE = (64, 64)
FEW_TILES = 500
"""Rows and lanes of a transposing tile; half the rows where there would be fewer tiles. Float32 to
channels last takes 64.2 us on an H200 with 16 warps, 65.9 with 8.
"""

CROSSWISE_SIZE = 16
"""A transposition with a shorter side is not worth a tile."""

ROW_WORK = 12
"""A pointwise kernel that spends as much on what depends on one axis only gets a tile of rows."""

ADDRESS_WORK = 2
"""What an address costs that a thread computes once for all points along such axes."""

REPEATS, REPEATED_LANES = 8, 128
"""The points along axes that work is repeated along, and those along others, of a tile that does
such work once: each thread takes one of the latter.
"""

ROW_TILE = 2048
"""The points of such a tile: each thread takes several rows and several lanes."""

TILE_STATEMENTS = 900
"""A thread takes so many points of such a tile that it runs at most this many statements at once:
their values stay in registers.
"""

FEW_READS = 2
"""Of one tensor, for a point. Microseconds on an H200 of tiles of 512 points in 8 warps, dealt out,
and of the one that is chosen; more reads than these below:

    flip of bfloat16; unfold of 3 x 3, bfloat16; gather of float16     83, 50; 124, 48; 69, 56
    maximum of 3 x 3; grid_sample of bfloat16, of float32              135, 126; 78, 55; 102, 59
"""

MOST_NARROW = 32
"""Points of a thread that reads lone elements of two bytes or one: 8 of them are a vector."""

MOST_PER_THREAD = 8
RESIDENT_THREADS = 132 * 2048
"""Points of a thread in a pointwise kernel of many, and the threads that a large GPU holds at a
time: fewer points are spread over all of them.
"""

LONG_LANES, LONG_TILE = 8192, 1024
"""From this length of rows on, a pointwise kernel that loads several elements for each row has
tiles within a row; the points of one.
"""

MOMENTS = ("squared_deviations", "mean")
"""Reductions whose lanes count their elements."""

GRID_LIMIT = 65535
"""Programs along the second dimension of a grid."""


@dataclass(frozen=True)
class Tiling:
    """Tile sizes (powers of two) and warps of one kernel.

    `rblock` is 0 for a plain pointwise kernel. `lanes` names the outer axes that a pointwise kernel
    of two-dimensional tiles lays along their second dimension. `dealt`: neighbouring points go to
    different threads, as strided and indirect reads want it, and not in fours to one. `apart`: a
    tile's rows run over the last outer axis only. `vectors`: accesses at the ends of rows that are
    not whole vectors are still wide (`vector_rows`). `lane_first`: neighbouring programs differ in
    their lanes. `stages`: how many tiles of a loop over rows are under way at once. `tiles`: how
    many make up a row that is kept, if not one. `group`: so many neighbouring lanes have a running
    maximum together. `repeats`: a thread has all rows of a tile for one lane, and the address of
    the first.
    """

    xblock: int
    rblock: int = 0
    persistent: bool = False
    warps: int = 4
    lanes: tuple[str, ...] = ()
    dealt: bool = False
    apart: bool = False
    vectors: bool = False
    lane_first: bool = False
    stages: int = 0
    tiles: int = 0
    group: int = 1
    repeats: bool = False


def row_major(axes: Sequence[Axis]) -> sympy.Expr:
    """The number of a point among the flattened axes."""
    flat, below = sympy.Integer(0), sympy.Integer(1)
    for axis in reversed(axes):
        flat, below = flat + axis.symbol * below, below * axis.size
    return sympy.expand(flat)


def constants_of(tiling: Tiling) -> dict[str, int]:
    """The constants that a kernel is compiled with."""
    constants = {"XBLOCK": tiling.xblock}
    if tiling.rblock:
        constants["RBLOCK"] = tiling.rblock
    return constants | ({"VECTORS": 1} if tiling.vectors else {})


def row_axes(kernel: LoopKernel, tiling: Tiling) -> tuple[Axis, ...]:
    """The axes that a tile's first dimension runs over, flattened."""
    axes = kernel.outer[-1:] if tiling.apart else kernel.outer
    return tuple(axis for axis in axes if axis.symbol.name not in tiling.lanes)


def apart_axes(kernel: LoopKernel, tiling: Tiling) -> tuple[Axis, ...]:
    """The axes that have one value in a program, along the grid's second dimension."""
    return kernel.outer[:-1] if tiling.apart else ()


def lane_axes(kernel: LoopKernel, tiling: Tiling) -> tuple[Axis, ...]:
    """The axes that a tile's second dimension runs over, flattened."""
    return kernel.inner or tuple(axis for axis in kernel.outer if axis.symbol.name in tiling.lanes)


def choose_tiling(kernel: LoopKernel) -> Tiling:
    """Tile sizes from the kernel's sizes, or from their hints where they are symbolic."""
    hints = _Hints(zip([symbol.name for symbol in kernel.sizes], kernel.hints, strict=False))
    points = _extent(kernel.outer, hints)
    if not kernel.inner:
        return _pointwise(kernel, points, hints)
    row = _extent(kernel.inner, hints)
    static = all(isinstance(axis.size, int) for axis in kernel.inner)
    if kernel.shares != 0:
        return _shared_rows(kernel, row)
    if any(isinstance(statement, Sort) for statement in kernel.body):
        return _sorted(row, points)
    if points >= COLUMN_TILE[0] and not _rows_are_contiguous(kernel, hints):
        return _columns(kernel, row if static else None, hints)
    is_kept = static and row <= _longest_kept_row(kernel)
    tiled = _tiled_row(kernel, row, is_kept=is_kept) if static else None
    if tiled is not None:
        return tiled
    if is_kept:
        return _persistent(kernel, row, points)
    if _reads_again(kernel) and row > LONG_REREAD_ROW:
        # More threads a row, and so fewer rows at a time: they stay in the second-level cache.
        return Tiling(1, 4096, warps=16)
    return _looped(kernel, row if static else None, row)


def _persistent(kernel: LoopKernel, row: int, points: int) -> Tiling:
    """Whole rows in registers: 16 elements a thread, or 32 of very long rows and of many short ones
    in half precision, which one warp reduces. Else several rows a tile only if they are short,
    since vectors along rows would have to be rearranged for them.
    """
    rblock = max(1, _power_of_two(row))
    if rblock >= LONE_ROW:
        streams = _streams(kernel)
        narrow = 0 < len(streams) <= 2 and all(load.dtype.itemsize <= 2 for load in streams)
        if narrow and rblock <= WARP_ROW and points >= MANY_ROWS:
            warps = 1 if _reads_again(kernel) else 2
            return Tiling(warps * WARP_ROW // rblock, rblock, persistent=True, warps=warps)
        return Tiling(1, rblock, persistent=True, warps=min(32, rblock // 512))
    xblock = max(1, min(2048 // rblock, 64, _power_of_two(points)))
    return Tiling(xblock, rblock, persistent=True, warps=_warps(xblock * rblock))


def _tiled_row(kernel: LoopKernel, row: int, *, is_kept: bool) -> Tiling | None:
    """A row that is kept in several tiles: one too long for a single tile, or one whose arithmetic
    or accesses take longer than memory does. Of the latter, few threads each have much.
    """
    streams = _streams(kernel)
    if len(streams) != 1 or _power_of_two(row) < LONE_ROW or not can_tile(kernel):
        return None
    reads_again = _reads_again(kernel)
    if not is_kept:
        if not reads_again or row > LONGEST_TILED_ROW:
            return None
        return Tiling(1, ROW_PART, persistent=True, warps=16, tiles=-(-row // ROW_PART))
    if row % 2 == 1 and streams[0].dtype.itemsize < 4 and reads_again:
        tile, most = SINGLE_PER_TILE, SINGLE_PER_THREAD
    elif row >= SHORT_HEAVY_ROW and _work_along_rows(kernel) >= HEAVY_ROW:
        tile, most = PER_TILE, PER_THREAD
    else:
        return None
    warps = max(1, _power_of_two(-(-row // (32 * most))))
    part = 32 * warps * tile
    tiles = -(-row // part)
    return Tiling(1, part, persistent=True, warps=warps, tiles=tiles) if tiles > 1 else None


def _work_along_rows(kernel: LoopKernel) -> int:
    """The cost of what is computed of each element of a row."""
    inner = inner_names(kernel.body, kernel.inner)
    return sum(
        SCALAR_OPS[s.op].cost for s in kernel.body if isinstance(s, Compute) and s.name in inner
    )


def _shared_rows(kernel: LoopKernel, row: int) -> Tiling:
    """Whole rows, one tile of them after another: the next ones are on their way meanwhile."""
    rblock = max(1, _power_of_two(row))
    sizes = [load.dtype.itemsize for load in _streams(kernel)]
    xblock = max(1, SHARED_TILE // rblock * 4 // max([4, *sizes]))
    # Masks and addresses of several rows take registers, too.
    warps = max(8 if xblock > 2 else 4, min(MANY_WARPS, rblock * xblock // 512))
    waiting = xblock * rblock * sum(sizes)
    stages = min(3, 1 + WAITING_BYTES // max(1, waiting))
    return Tiling(xblock, rblock, persistent=True, warps=warps, stages=stages)


def _looped(kernel: LoopKernel, static_row: int | None, row: int) -> Tiling:
    """A loop along one row."""
    inner = {axis.symbol for axis in kernel.inner}
    half = min((s.dtype.itemsize for s in _streams(kernel)), default=4) < 4
    weighted = any(isinstance(s, Reduce) and s.kind == "sum_exp" for s in kernel.body)
    longest = LOOPED_HALF_ROW if weighted and half else LOOPED_ROW
    rblock = min(longest, max(16, _power_of_two(row)))
    narrow = weighted or static_row is None or static_row % (4 if not half else 8) != 0
    many = narrow and rblock == longest
    stores = any(isinstance(s, Store) and s.index.free_symbols & inner for s in kernel.body)
    # Each lane then counts elements that its number does not tell.
    countable = all(getattr(s, "kind", "") not in MOMENTS for s in kernel.body)
    vectors = many and countable and (weighted or stores) and vector_rows(kernel) is not None
    size = 2 if half else 4
    group, step = GROUP_BYTES // size, GROUPED_BYTES // size
    if weighted and static_row is not None and row >= step:
        shifted = static_row % group != 0
        if not shifted or (countable and vector_rows(kernel) is not None):
            return Tiling(1, step, warps=MANY_WARPS, vectors=shifted, group=group)
    return Tiling(1, rblock, warps=MANY_WARPS if many else _warps(rblock), vectors=vectors)


def _streams(kernel: LoopKernel) -> list[Load]:
    """The loads of elements that differ from row to row and within a row."""
    outer = {axis.symbol for axis in kernel.outer}
    row = _extent(kernel.inner, _Hints())
    return [
        s
        for s in kernel.body
        if isinstance(s, Load)
        and s.index.free_symbols & outer
        # A vector along a part of the row takes few registers.
        and 2 * _extent([a for a in kernel.inner if a.symbol in s.index.free_symbols], _Hints())
        > row
    ]


def _sorted(row: int, points: int) -> Tiling:
    """Rows that are sorted each lie in one warp, which exchanges elements without barriers."""
    rblock = max(1, _power_of_two(row))
    if rblock > SHARED_WARP:
        return Tiling(1, rblock, persistent=True, warps=1)
    xblock = max(1, min(2048 // rblock, 64, _power_of_two(points)))
    return Tiling(xblock, rblock, persistent=True, warps=_warps(xblock * rblock))


def _longest_kept_row(kernel: LoopKernel) -> int:
    """The longest row that a program keeps in registers, by the number of rows that it keeps."""
    loads = _streams(kernel)
    if any(isinstance(statement, Scan) for statement in kernel.body) or not _reads_again(kernel):
        return SHORT_KEPT_ROW
    return LONGEST_KEPT_ROW if len(loads) < 2 else KEPT_ROW if len(loads) < 3 else SHORT_KEPT_ROW


def _reads_again(kernel: LoopKernel) -> bool:
    """Whether a looped kernel walks along a row several times."""
    if not any(isinstance(statement, Reduce) for statement in kernel.body):
        return False
    return sum(bool(phase.inner) for phase in split_phases(kernel)) > 1


def _columns(kernel: LoopKernel, row: int | None, hints: _Hints) -> Tiling:
    """Tiles over neighbouring columns; `row`: the length of the reduced axes, if it is static."""
    xblock, rblock = COLUMN_TILE
    last, points = kernel.outer[-1], _extent(kernel.outer, hints)
    apart = (
        len(kernel.outer) > 1
        and all(isinstance(axis.size, int) for axis in kernel.outer[:-1])
        and _extent((last,), hints) >= xblock
        and _extent(kernel.outer[:-1], hints) <= GRID_LIMIT // 2
    )
    if row is not None and row <= PERSISTENT_COLUMN:
        rblock = max(1, _power_of_two(row))
        while xblock > NARROW_COLUMNS and points < xblock * FEW_PROGRAMS:
            xblock //= 2
        warps = _warps(xblock * rblock)
        return Tiling(xblock, rblock, persistent=True, warps=warps, apart=apart)
    if any(isinstance(statement, Scan) for statement in kernel.body):
        xblock, rblock = SCANNED_COLUMN_TILE
        wide = any(load.dtype.itemsize > 4 for load in _streams(kernel))
        return Tiling(xblock, rblock, warps=4 if wide else 2, apart=apart)
    if all(load.dtype.itemsize >= 4 for load in _streams(kernel)):
        xblock, rblock = NARROW_COLUMN_TILE
        few = points <= 2 * FEW_PROGRAMS * xblock
        return Tiling(xblock, rblock, warps=MANY_WARPS if few else 8, apart=apart)
    return Tiling(xblock, rblock, warps=_warps(xblock * rblock), apart=apart)


def grid(
    kernel: LoopKernel, tiling: Tiling, dims: Mapping[str, int | str]
) -> tuple[int | str, ...]:
    """The number of programs, given the Dims that a launch passes for the kernel's sizes."""
    if kernel.shares != 0:
        shares = kernel.shares
        text = integer_text(shares, lambda name: f"({dims[name]})")
        return (shares if isinstance(shares, int) else text,)
    programs = (_blocks(row_axes(kernel, tiling), tiling.xblock, dims),)
    if tiling.apart:
        return (*programs, _blocks(apart_axes(kernel, tiling), 1, dims))
    if not tiling.lanes:
        return programs
    both = (*programs, _blocks(lane_axes(kernel, tiling), tiling.rblock, dims))
    return both[::-1] if tiling.lane_first else both


def _blocks(axes: Sequence[Axis], block: int, dims: Mapping[str, int | str]) -> int | str:
    """How many blocks cover the axes."""
    sizes = [axis.size for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        return -(-prod(sizes) // block)  # type: ignore[arg-type]
    points = "*".join(f"({integer_text(size, lambda n: f'({dims[n]})')})" for size in sizes)
    return f"({points} + {block - 1}) // {block}"


def _pointwise(kernel: LoopKernel, points: int, hints: _Hints) -> Tiling:
    lane = _crosswise_axis(kernel, hints)
    if lane is not None:
        xblock, rblock = CROSSWISE_TILE
        if points < xblock * rblock * FEW_TILES:
            xblock //= 2
        # Where a tile holds whole rows of the innermost axis, its neighbour along them is far away.
        across = next(axis for axis in kernel.outer if axis.symbol.name == lane)
        fits = points // max(1, _extent((across,), hints)) <= xblock * GRID_LIMIT // 2
        whole = fits and _extent(kernel.outer[-1:], hints) <= xblock
        wide = xblock == CROSSWISE_TILE[0] and all(p.dtype.itemsize >= 4 for p in kernel.params)
        warps = MANY_WARPS if wide else 8
        return Tiling(xblock, rblock, warps=warps, lanes=(lane,), lane_first=whole)
    if _has_long_rows(kernel, hints):
        lane = kernel.outer[-1].symbol.name
        vectors = bool(vector_bounds(kernel, lane))
        return Tiling(1, LONG_TILE, warps=4, lanes=(lane,), lane_first=True, vectors=vectors)
    work = _work_along_one_axis(kernel, hints)
    repeated = _repeating_axes(kernel, max(ROW_WORK, work), hints)
    if repeated:
        names = (axis.symbol.name for axis in kernel.outer)
        lanes = tuple(name for name in names if name not in repeated)
        return Tiling(REPEATS, REPEATED_LANES, warps=REPEATED_LANES // 32, lanes=lanes,
                      lane_first=True, dealt=True, repeats=True)  # fmt: skip
    if work >= ROW_WORK:
        return _row_tiling(kernel, points, hints)
    access = _access(kernel) if kernel.outer else "plain"
    loads_masked = any(isinstance(s, Load) and s.mask for s in kernel.body)
    if access == "scattered" or (loads_masked and _reads_neighbours(kernel)):
        return _scattered_tiling(kernel, points)
    if access == "repeated":
        return Tiling(min(256, max(32, _power_of_two(points))), warps=4)
    per_thread = _points_of_thread(points, MOST_PER_THREAD)
    static = all(isinstance(axis.size, int) for axis in kernel.outer)
    masked = not static or points % (128 * per_thread) != 0 or loads_masked
    vectors = masked and not loads_masked and per_thread >= MOST_PER_THREAD // 2
    if masked and not vectors and any(param.dtype.itemsize >= 4 for param in kernel.params):
        per_thread = min(per_thread, MOST_PER_THREAD // 2)  # masked accesses are narrow ones
    if not masked and per_thread == MOST_PER_THREAD:
        # An embedding of bfloat16 on an H200: 33.0 us with 16 points a thread, 35.1 with 8.
        looks_up = _narrowest(kernel, written=True) <= 2 and _places_loaded(kernel)
        if looks_up or _narrowest(kernel) == 1:
            per_thread *= 2
    xblock = min(128 * per_thread, max(32, _power_of_two(points)))
    return Tiling(xblock, warps=max(1, xblock // (32 * per_thread)), vectors=vectors)


def _points_of_thread(points: int, most: int) -> int:
    """The points that a thread computes, a power of two: one while not all threads have work."""
    per_thread = 1
    while 2 * per_thread <= most and per_thread * RESIDENT_THREADS < points:
        per_thread *= 2
    return per_thread


def _scattered_tiling(kernel: LoopKernel, points: int) -> Tiling:
    """Reads that no vector makes, a point each. Few of them (a flip, a gather): neighbours belong
    to one thread, which reads indices and writes results by vectors, of 16 bytes each. Several
    places of a tensor (a window), or indices that come again for each row: what a warp reads at
    once lies together if neighbours belong to neighbouring threads. Windows that lie anywhere
    (those of grid_sample) share memory if a program has many.
    """
    is_window = max(map(len, _places(kernel).values()), default=0) > FEW_READS
    places, names = _places_loaded(kernel), {axis.symbol.name for axis in kernel.outer}
    last = kernel.outer[-1].symbol.name
    written = max(param.dtype.itemsize for param in kernel.params if param.access != "read")
    dealt = is_window or any(
        last in (along := names & set(free_names(load.index))) and along != names for load in places
    )
    warps = 16 if is_window and places else 8 if is_window else 4
    if dealt:
        most = MOST_PER_THREAD if places else 4
    elif places:
        most = 4
    else:
        most = max(2, 16 // written) if written >= 4 else MOST_NARROW
    most = min(most, max(1, TILE_STATEMENTS // len(kernel.body)))
    xblock = 32 * warps * _points_of_thread(points, most)
    xblock = min(xblock, max(32, _power_of_two(points)))
    return Tiling(xblock, warps=min(warps, xblock // 32), dealt=dealt)


def _places(kernel: LoopKernel) -> dict[str, dict[sympy.Expr, None]]:
    """Where each tensor is read for a point."""
    found: dict[str, dict[sympy.Expr, None]] = defaultdict(dict)
    for statement in kernel.body:
        if isinstance(statement, Load):
            found[statement.buffer][statement.index] = None
    return found


def _reads_neighbours(kernel: LoopKernel) -> bool:
    """Whether several places of a tensor are a few elements apart (a window along rows): of two
    that lie so no more than one begins where a vector may.
    """
    for places in _places(kernel).values():
        first, *others = places
        if len(places) > FEW_READS and any(
            isinstance(step := sympy.expand(other - first), sympy.Integer) and step % 4 != 0
            for other in others
        ):
            return True
    return False


def _has_long_rows(kernel: LoopKernel, hints: _Hints) -> bool:
    """Whether several loads are one element for each of long rows (a gradient of cross-entropy): a
    program within a row loads them once, and computes once what depends on them alone.
    """
    if len(kernel.outer) < 2:
        return False
    *rows, last = kernel.outer
    if not isinstance(last.size, int) or last.size < LONG_LANES:
        return False
    if _extent(rows, hints) > GRID_LIMIT // 2 or _access(kernel) != "plain":
        return False
    names = {axis.symbol.name for axis in rows}
    loads = {
        (s.buffer, s.index)
        for s in kernel.body
        if isinstance(s, Load) and free_names(s.index) and free_names(s.index) <= names
    }
    return len(loads) > 1


def _narrowest(kernel: LoopKernel, *, written: bool = False) -> int:
    """The bytes of the smallest elements, or of those that are written, if none have more than two;
    else 4.
    """
    params = [param for param in kernel.params if not written or param.access != "read"]
    sizes = {param.dtype.itemsize for param in params}
    return min(sizes) if max(sizes) <= 2 else 4


def _crosswise_axis(kernel: LoopKernel, hints: _Hints) -> str | None:
    """The axis along which an access is contiguous that strides along the innermost, or None."""
    if len(kernel.outer) < 2 or _extent(kernel.outer[-1:], hints) < CROSSWISE_SIZE:
        return None
    fast = kernel.outer[-1].symbol
    for statement in kernel.body:
        index = index_of(statement)
        if index is None or _step(index, fast) in (0, 1):
            continue
        for axis in kernel.outer[:-1]:
            size = _extent((axis,), hints)
            fits = size <= GRID_LIMIT * CROSSWISE_TILE[1] // 2
            if _step(index, axis.symbol) == 1 and size >= CROSSWISE_SIZE and fits:
                return axis.symbol.name
    return None


def _repeating_axes(kernel: LoopKernel, least: int, hints: _Hints) -> frozenset[str]:
    """The axes that most of the work does not depend on, `least` or more, at each point of a kernel
    whose reads are scattered (the channels of images that are resampled): a program computes
    weights and places once for several points along them. Places that are read from memory lie
    anywhere (those of grid_sample): there, threads wait for memory, and want other threads' work.
    """
    if len(kernel.outer) < 2 or _access(kernel) == "plain" or _places_loaded(kernel):
        return frozenset()
    names = [axis.symbol.name for axis in kernel.outer]
    extents = {axis.symbol.name: _extent((axis,), hints) for axis in kernel.outer}
    points = prod(extents.values())
    if points < REPEATS * REPEATED_LANES * FEW_TILES:
        return frozenset()
    best, most = frozenset[str](), least - 1
    alone = (frozenset((name,)) for name in names[:-1])
    for each in (*alone, *(frozenset(names[:count]) for count in range(2, len(names)))):
        repeats = prod(extents[name] for name in each)
        wasted = -repeats % REPEATS
        if not 8 * wasted <= repeats <= GRID_LIMIT or points < REPEATED_LANES * repeats:
            continue
        work, all_work = _work_without(kernel, each)
        if work > most and 3 * work >= 2 * all_work:
            best, most = each, work
    return best


def _places_loaded(kernel: LoopKernel) -> list[Load]:
    """The loads that the index of another load depends on."""
    loads: dict[str, Load] = {}
    sources: dict[str, set[str]] = {}
    found: set[str] = set()
    for statement in kernel.body:
        if isinstance(statement, (Store, CheckIndex, Constant)):
            continue
        index = index_of(statement)
        names = set(free_names(index)) if index is not None else set()
        behind = set().union(*(sources.get(name, ()) for name in names))
        if isinstance(statement, Load):
            found |= behind
            loads[statement.name] = statement
            behind.add(statement.name)
        else:
            behind.update(*(sources.get(name, ()) for name in operands(statement)))
        sources[statement.name] = behind
    return [loads[name] for name in sorted(found)]


def _work_without(kernel: LoopKernel, axes: frozenset[str]) -> tuple[int, int]:
    """The cost, at each point, of values that do not vary along some axes, and of all."""
    along = set(axes)
    work = total = 0
    for statement in kernel.body:
        if isinstance(statement, (Store, CheckIndex, Constant)):
            continue
        index = index_of(statement)
        names = {*operands(statement), *(free_names(index) if index is not None else ())}
        cost = SCALAR_OPS[statement.op].cost if isinstance(statement, Compute) else 0
        address = ADDRESS_WORK if isinstance(statement, Load) else 0
        total += cost + address
        if names & along:
            along.add(statement.name)
            cost = 0
        work += cost + address
    return work, total


def _work_along_one_axis(kernel: LoopKernel, hints: _Hints) -> int:
    """The cost, at each point, of values that depend on the innermost axis only, or not on it: a
    tile of rows and lanes computes them once a row or once a lane.
    """
    if len(kernel.outer) < 2:
        return 0
    size = _extent(kernel.outer[-1:], hints)
    if size < CROSSWISE_SIZE or size > GRID_LIMIT * CROSSWISE_SIZE:
        return 0
    last = kernel.outer[-1].symbol.name
    varying = {axis.symbol.name: frozenset((axis.symbol.name == last,)) for axis in kernel.outer}
    work = 0
    for statement in kernel.body:
        if isinstance(statement, (Store, CheckIndex, Constant)):
            continue
        index = index_of(statement)
        names = (*operands(statement), *(free_names(index) if index is not None else ()))
        sides = frozenset().union(*(varying.get(name, frozenset()) for name in names))
        varying[statement.name] = sides
        if len(sides) == 1 and isinstance(statement, Compute):
            work += SCALAR_OPS[statement.op].cost
    return work


def _row_tiling(kernel: LoopKernel, points: int, hints: _Hints) -> Tiling:
    """A tile of several rows of the innermost axis, in the widest lanes that waste little."""
    size = _extent(kernel.outer[-1:], hints)
    dealt = _access(kernel) == "scattered"
    lanes = (16, 32, 64, 128, 256, 512) if dealt else (16, 32, 64, 128)
    rblock = min(lanes, key=lambda block: (round(-(-size // block) * block / size, 1), -block))
    each = max(4, _power_of_two(TILE_STATEMENTS // len(kernel.body) + 1) // 2)
    tile = min(ROW_TILE, 128 * each) if points >= ROW_TILE * 512 else ROW_TILE // 4
    lane = kernel.outer[-1].symbol.name
    warps = 4
    if dealt and rblock in (128, 256):
        # Fewer threads take more points each: of the same columns, in several rows.
        warps, tile = 2, min(tile, 1024)
    return Tiling(max(1, tile // rblock), rblock, warps=warps, lanes=(lane,), dealt=dealt)


def _access(kernel: LoopKernel) -> str:
    """How reads go along the innermost axis: "plain" if contiguous or constant, "repeated" if
    several points read one element (a division), else "scattered" (strided, or indirect).
    """
    last = kernel.outer[-1].symbol
    moving = {last.name}
    result = "plain"
    for statement in kernel.body:
        index = index_of(statement)
        along = set() if index is None else free_names(index) & moving
        if isinstance(statement, Load) and along:
            step = _step(statement.index, last)
            if along != {last.name} or step not in (0, 1):
                return "scattered"
            result = "repeated" if step == 0 else result
        if not isinstance(statement, (Store, CheckIndex)) and (
            along or not moving.isdisjoint(operands(statement))
        ):
            moving.add(statement.name)
    return result


def _step(index: sympy.Expr, axis: sympy.Symbol) -> sympy.Expr | int:
    """How far one step along an axis moves in memory, as far as the index says it plainly."""
    return index.coeff(axis)


def _rows_are_contiguous(kernel: LoopKernel, hints: _Hints) -> bool:
    """Whether most elements are read contiguously along the innermost inner axis: a vector that
    all rows share stays in the cache, and counts little, and so does what many points share.
    """
    symbol = kernel.inner[-1].symbol
    along = across = 0
    for statement in kernel.body:
        index = index_of(statement)
        if index is not None:
            index = index.xreplace(dict.fromkeys(index.atoms(FloorDiv), sympy.S.Zero))
        if index is not None and symbol in index.free_symbols:
            axes = [a for a in (*kernel.outer, *kernel.inner) if a.symbol in index.free_symbols]
            size = _extent(axes, hints)
            if _step(index, symbol) == 1:
                along += size
            else:
                across += size
    return along >= across


class _Hints(dict[str, int]):
    """Hints by name; a size without one counts as 1024."""

    def __missing__(self, name: str) -> int:
        return 1024


def _extent(axes: Sequence[Axis], hints: _Hints) -> int:
    return prod(int(evaluate_expr(axis.size, hints)) for axis in axes)


def _power_of_two(count: int) -> int:
    """The least power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def _warps(elements: int) -> int:
    return max(1, min(8, elements // 256))
