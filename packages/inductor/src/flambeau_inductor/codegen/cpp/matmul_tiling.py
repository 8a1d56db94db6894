"""How a matrix product is cut for a CPU, and which ways of cutting are worth measuring.

    512 x 1024 x 4096 float32, AVX-512, 2 threads  ->  14x32 in blocks of 126x256, 256 deep, ...

A register tile of `rows` by `vectors` vectors takes `kblock` steps of the inner axis at a time; a
task is a block of results, whose sums stay in the second-level cache; threads share the tasks out.
`estimate` is a small model of the arithmetic, of edges and of idle threads. It ranks; measurements
decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, lcm
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_inductor.codegen.contraction import Extents
    from flambeau_runtime.tuning.contest import CpuFacts

TARGET_ROWS = 64
TARGET_LANES = 256
"""About so many results of a task: their sums take 64 KiB."""

DEPTH = 256
"""A task goes through at most so many elements of the inner axis at a time: those are summed one
after another."""

DEEP_BYTES = 1024
"""The same for int8: their sums are exact."""

PADDING = 16
"""Elements between copied rows: rows a power of two apart share few lines of the cache."""

MOST_DOT_ROWS, MOST_DOT_LANES = 4, 8
"""A register tile of dot products has at most so many."""

COMPUTED_LANES = 16 << 10
"""Bytes of computed lanes of dot products: they stay in the first-level cache."""

MOST_STACK = 1 << 20
"""Threads have stacks of 2 MiB or more."""

TILE_STEPS = 16
"""The tile unit multiplies so many words of the inner axis at a time."""

TILE_ROWS, TILE_LANES = 64, 64
"""Blocks of its results, whose epilogue runs while it multiplies the next ones: two of them, a
panel of the right operand and some rows of the left one stay in the first-level cache.
"""

FEWEST_TILE_ROWS = 4

PANEL_BYTES = 512 << 10
"""About so much of the right operand is multiplied by all rows: it stays in the second-level cache.
"""

NUMBERS = {"float": 1, "bfloat16": 2, "int16": 2, "int8": 4}
"""What a word of 32 bits may hold -> how many numbers."""

SERIAL_WORK = 1 << 17
"""Waking threads takes longer than so many multiplications."""


@dataclass(frozen=True)
class CppMatmulTiling:
    """`lane_bytes`: the bytes of a vector. `step`: what a word of 32 bits holds, one of `NUMBERS`.
    A task has `row_block` by `lane_block` results, summed `kblock` deep at a time. `packed`: the
    right operand is in panels of a register tile's width (`lowering/packing.py`);
    otherwise it is read where it lies, or copied, if `copies_right`. `copies_left`: a task copies
    its rows of the left operand.
    """

    rows: int
    vectors: int
    lane_bytes: int
    step: str
    row_block: int
    lane_block: int
    kblock: int
    packed: bool = True
    copies_left: bool = False
    copies_right: bool = False
    tiles: bool = False
    """Whether the CPU's tile unit multiplies."""
    dots: int = 0
    """Where both operands' elements lie side by side along the inner axis: a register tile holds a
    vector of partial sums for each of its rows and of so many lanes, and reads them as they lie; or
    a task computes so many lanes of the right operand before, if `copies_right`."""

    @property
    def width(self) -> int:
        """The lanes of a register tile."""
        return self.dots or self.vectors * self.lane_bytes // 4

    @property
    def numbers(self) -> int:
        """The numbers that a word holds."""
        return NUMBERS[self.step]

    @property
    def block_of_steps(self) -> int:
        """Operands hold whole blocks of so many numbers along the inner axis, some of them 0."""
        return self.numbers * (TILE_STEPS if self.tiles else 1)

    @property
    def shifted(self) -> bool:
        """Whether the left operand is read as uint8, by 128 above its int8 numbers: a row of 128
        more says what to subtract from the sums. The tile unit takes int8.
        """
        return self.step == "int8" and not self.tiles

    @property
    def row_stride(self) -> int:
        """Numbers between copied rows and, for dot products, copied lanes."""
        if not self.tiles:
            return self.kblock + PADDING
        lines = self.kblock * 4 // (64 * self.numbers)  # the unit reads whole lines of the cache
        return (lines | 1) * 16 * self.numbers

    @property
    def stack(self) -> int:
        """About the bytes that a task needs on the stack."""
        sums = self.row_block * self.lane_block
        if self.tiles:
            copied = self.copies_left * self.row_block * self.row_stride
            copied += self.copies_right * self.width * self.kblock
            return 4 * (2 * self.row_block * TILE_LANES + copied // self.numbers)
        if self.dots and not self.copies_right:
            return 4 * sums + (4 * self.row_block * self.kblock if self.copies_left else 0)
        return 4 * (sums + (self.row_block + self.width) * self.kblock)

    def neighbours(self) -> list[CppMatmulTiling]:
        """Tilings that differ in the size of one block."""
        steps = {"kblock": 64, "row_block": self.rows, "lane_block": self.width}
        changed = (
            replace(self, **{name: value})
            for name, step in steps.items()
            for value in (getattr(self, name) * 2, getattr(self, name) // 2 // step * step)
            if value > 0 and not ((self.dots or self.tiles) and name == "kblock")
        )
        return [each for each in changed if each.stack <= MOST_STACK]

    def __str__(self) -> str:
        text = f"{self.rows}x{self.width} blocks={self.row_block}x{self.lane_block}x{self.kblock}"
        text += " dots" if self.dots else ""
        text += " computed" if self.dots and self.copies_right else ""
        text += " bytes" if self.step == "int8" else ""
        return text + (" copied" if self.copies_left else "") + (" tiles" if self.tiles else "")


def step_of(dtype: torch.dtype, facts: CpuFacts) -> str:
    """What a word holds in products of this dtype."""
    if dtype is torch.int8:
        return "int8" if facts.multiplies_int8 else "int16"
    if dtype is torch.bfloat16 and facts.multiplies_bfloat16:
        return "bfloat16"
    return "float"


def register_tiles(facts: CpuFacts) -> list[tuple[int, int]]:
    """Rows and vectors of register tiles: the sums, a row of the right operand and a word of the
    left one fill the registers.
    """
    free = facts.registers - 1
    return [(free // vectors - 1, vectors) for vectors in (1, 2, 3, 4, 6) if free // vectors > 1]


def candidates(
    sizes: Extents, dtype: torch.dtype, facts: CpuFacts, *, packed: bool, copies_left: bool,
    tiles_copy_left: bool, count: int,
) -> list[CppMatmulTiling]:  # fmt: skip
    """At most `count` tilings that the model prefers, best first. `copies_left`: rows of the left
    operand cannot be read as they lie; `tiles_copy_left`: nor by the tile unit.
    """
    ranked = sorted(
        {
            *_possible(sizes, dtype, facts, packed, copies_left),
            *_by_tile_unit(sizes, dtype, facts, packed, tiles_copy_left),
        },
        key=lambda each: (estimate(each, sizes, facts), str(each)),
    )
    best: dict[tuple[int, bool, bool, str], CppMatmulTiling] = {}
    for each in ranked:
        best.setdefault((each.width, each.copies_left, each.tiles, each.step), each)
    return list(best.values())[:count]


def _possible(
    sizes: Extents, dtype: torch.dtype, facts: CpuFacts, packed: bool, copies_left: bool
) -> Iterator[CppMatmulTiling]:
    step = step_of(dtype, facts)
    # Words of two int16 numbers, and floats of half ones, are made of what lies in memory.
    converts = copies_left or dtype is torch.int8 or (step == "float" and dtype.itemsize == 2)
    numbers, most_deep = NUMBERS[step], DEEP_BYTES if step == "int8" else DEPTH
    extra = int(step == "int8")  # the row of 128
    for most, vectors in register_tiles(facts):
        width = vectors * facts.lane_bytes // 4
        count = sizes.rows + extra
        rows = ceil(count / ceil(count / most)) if sizes.static else most
        if vectors > 1 and width - facts.lane_bytes // 4 >= sizes.lanes:
            continue
        depth = ceil(sizes.inner / ceil(sizes.inner / most_deep))
        row_block, lane_block = blocks(rows, width, sizes, facts)
        if extra:
            row_block = max(1, row_block - 1)
        for copies in (True,) if converts else (False, True):
            yield CppMatmulTiling(
                rows, vectors, facts.lane_bytes, step, row_block, lane_block,
                ceil(depth / numbers) * numbers, packed, copies, not packed,
            )  # fmt: skip


def _by_tile_unit(
    sizes: Extents, dtype: torch.dtype, facts: CpuFacts, packed: bool, copies_left: bool
) -> Iterator[CppMatmulTiling]:
    """The tiling of the tile unit: whole sums, for as many lanes as stay in the cache."""
    step = step_of(dtype, facts)
    has_unit = {"bfloat16": facts.has_tiles, "int8": facts.has_int8_tiles}.get(step, False)
    deep = TILE_STEPS * NUMBERS[step]
    if not has_unit or sizes.rows < FEWEST_TILE_ROWS or sizes.inner < deep:
        return
    kblock = ceil(sizes.inner / deep) * deep
    vectors = 2
    width = vectors * facts.lane_bytes // 4
    most_lanes = PANEL_BYTES * NUMBERS[step] // (4 * kblock)
    count = ceil(sizes.lanes / max(most_lanes, TILE_LANES))
    lane_block = ceil(sizes.lanes / (count * TILE_LANES)) * TILE_LANES
    tall = min(TILE_ROWS, ceil(sizes.rows / 16) * 16) if sizes.static else TILE_ROWS
    for rows in (tall, tall // 2 // 16 * 16):
        row_block, wide = _for_all_threads(rows, min(rows, 32), lane_block, width, sizes, facts)
        tiling = CppMatmulTiling(
            min(row_block, 32), vectors, facts.lane_bytes, step, row_block, wide, kblock, packed,
            copies_left, not packed, tiles=True,
        )  # fmt: skip
        if rows and tiling.stack <= MOST_STACK:
            yield tiling
            return


def dot_tiling(
    sizes: Extents, dtype: torch.dtype, facts: CpuFacts, grain: int = 0
) -> CppMatmulTiling:
    """The tiling of a product whose operands both lie along the inner axis. `grain`: lanes are
    computed before they are multiplied, in steps of so many points of that axis.
    """
    step = "int16" if dtype is torch.int8 else step_of(dtype, facts)
    most = min(sizes.rows, MOST_DOT_ROWS) if sizes.static else MOST_DOT_ROWS
    rows = ceil(sizes.rows / ceil(sizes.rows / most)) if sizes.static else most
    lanes = min((facts.registers - 1) // (rows + 1), MOST_DOT_LANES)
    row_block, lane_block = blocks(rows, lanes, sizes, facts)
    kblock = sizes.inner
    if grain:
        grain = lcm(grain, facts.lane_bytes)  # whole vectors of numbers
        deep = COMPUTED_LANES * NUMBERS[step] // (4 * lanes * grain) * grain
        kblock = min(max(grain, deep), ceil(sizes.inner / grain) * grain)
    return CppMatmulTiling(
        rows, 1, facts.lane_bytes, step, row_block, lane_block, kblock,
        packed=False, copies_right=grain > 0, dots=lanes,
    )  # fmt: skip


def blocks(rows: int, width: int, sizes: Extents, facts: CpuFacts) -> tuple[int, int]:
    """The rows and lanes of a task, of register tiles of these."""
    tall = max(1, TARGET_ROWS // rows) * rows
    wide = max(1, TARGET_LANES // width) * width
    row_block = min(tall, ceil(sizes.rows / rows) * rows) if sizes.static else tall
    lane_block = min(wide, ceil(sizes.lanes / width) * width)
    return _for_all_threads(row_block, rows, lane_block, width, sizes, facts)


def _for_all_threads(
    row_block: int, rows: int, lane_block: int, width: int, sizes: Extents, facts: CpuFacts
) -> tuple[int, int]:
    """A task's rows and lanes, fewer if there were less tasks than threads can share."""
    # Threads without a task are idle.
    while sizes.batch * ceil(sizes.rows / row_block) * ceil(sizes.lanes / lane_block) < (
        2 * facts.threads
    ):
        if lane_block > width and lane_block * 2 > row_block:
            lane_block = ceil(lane_block // width / 2) * width
        elif row_block > rows:
            row_block = ceil(row_block // rows / 2) * rows
        elif lane_block > width:
            lane_block = ceil(lane_block // width / 2) * width
        else:
            break
    return row_block, lane_block


def estimate(tiling: CppMatmulTiling, sizes: Extents, facts: CpuFacts) -> float:
    """Relative time: steps of register tiles, full or not, and of the threads' last tasks."""
    rows, vectors = tiling.rows, tiling.vectors
    block = min(tiling.row_block, sizes.rows) + tiling.shifted
    per_task = ceil(block / rows) * ceil(tiling.lane_block / tiling.width)
    tasks = (
        sizes.batch * ceil(sizes.rows / tiling.row_block) * ceil(sizes.lanes / tiling.lane_block)
    )
    # A vector of sums is added to again only when the last addition is done.
    arithmetic = max(rows * vectors / facts.additions, facts.latency)
    if tiling.tiles:
        arithmetic = 4.0 if rows > 16 else 2.0
    # A word of the left operand and vectors of the right one are read for each step.
    reading = 0.0 if tiling.tiles else (rows + vectors) / 2
    words = sizes.inner / tiling.numbers
    copying = 0.0
    if tiling.copies_left:
        copying = 2 * min(tiling.row_block, sizes.rows) * sizes.inner / (facts.lane_bytes / 4)
    elif tiling.row_block > rows:
        copying = 0.04 * per_task * words * rows  # rows far apart share few lines of the cache
    waves = ceil(tasks / facts.threads) if _is_parallel(sizes) else tasks
    return waves * (per_task * words * max(arithmetic, reading) + copying + 200)


def _is_parallel(sizes: Extents) -> bool:
    return sizes.points * sizes.inner >= SERIAL_WORK
