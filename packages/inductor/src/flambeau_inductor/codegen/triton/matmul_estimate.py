"""How long a matrix product takes on a GPU when it is cut into tiles in a given way, by a model.

    2048 x 3072 x 768 in tiles of 128x128, 2 programs a multiprocessor  ->  some 20,000 cycles

Tiles go in waves over the multiprocessors. Programs on one multiprocessor share its matrix units
and its path to the L2 cache; each waits for memory by itself. The model ranks; measurements decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from flambeau_inductor.ir import Compute, TileReduce
from flambeau_inductor.scalar_ops import SCALAR_OPS

if TYPE_CHECKING:
    from flambeau_inductor.codegen.triton.matmul_tiling import MatmulTiling
    from flambeau_inductor.ir import Body
    from flambeau_runtime.tuning.contest import DeviceFacts

PRODUCTS_PER_CYCLE = 2048
"""Of two-byte factors, by one multiprocessor's matrix units."""

SHARES = {128 * 256: 0.75, 128 * 128: 0.68, 64 * 128: 0.6, 0: 0.5}
"""The share of it that a tile of so many points reaches, by its arithmetic alone."""

L2_BYTES = 40.0
"""Bytes a cycle that one multiprocessor reads from the L2 cache."""

MEMORY_BYTES = 2500.0
"""Bytes a cycle that all multiprocessors read from memory."""

LATENCY = 900.0
"""Cycles from a read until its data are there."""

LAUNCH = 2500.0
"""Cycles until a program's first read has started, and after its last write."""

OPERATIONS_PER_CYCLE = 128.0
"""Instructions of single threads, by one multiprocessor."""

POINT_COST = 10
"""Instructions that a point of the result takes besides its arithmetic: conversion and store."""

COST_SCALE = 1.0
"""Instructions for one unit of a scalar operator's cost."""

REDUCE_COSTS = {"sum_exp": 14, "squared_deviations": 5, "argmax": 6, "argmin": 6}
"""Instructions for a point of a tile that is reduced; 2 for those of other kinds."""

RESERVED = 4096
"""Bytes of shared memory that a program needs besides its tiles: barriers, layout changes."""

REGISTERS = 65536


@dataclass(frozen=True)
class Work:
    """What the model knows of a product: its sizes, the bytes of a factor, and the instructions
    that a point of the result costs after the sum.
    """

    batch: int
    rows: int
    lanes: int
    inner: int
    itemsize: int
    point_cost: float


def epilogue_cost(epilogue: Body) -> float:
    """Instructions for one point of the result."""
    costs = (SCALAR_OPS[each.op].cost for each in epilogue if isinstance(each, Compute))
    reduces = (REDUCE_COSTS.get(s.kind, 2) for s in epilogue if isinstance(s, TileReduce))
    return POINT_COST + COST_SCALE * sum(costs) + sum(reduces)


def stage_bytes(tiling: MatmulTiling, itemsize: int) -> int:
    """Shared memory of one step's operands."""
    return (tiling.xblock + tiling.rblock) * tiling.kblock * itemsize


def resident(tiling: MatmulTiling, itemsize: int, facts: DeviceFacts) -> int:
    """How many programs fit on one multiprocessor."""
    tile = tiling.xblock * tiling.rblock
    shared = stage_bytes(tiling, itemsize) * tiling.stages + 1024
    if tiling.described_stores:
        shared += tile * 2
    # An accumulator of four bytes for each point, and some 40 registers besides.
    threads = 32 * tiling.warps
    registers = threads * min(255, tile // threads + 40)
    return max(1, min((facts.shared + 1024) // shared, REGISTERS // registers, 64 // tiling.warps))


def estimate(tiling: MatmulTiling, work: Work, facts: DeviceFacts) -> float:
    """Cycles, about."""
    down, across = ceil(work.rows / tiling.xblock), ceil(work.lanes / tiling.rblock)
    tiles = down * across * work.batch
    held = resident(tiling, work.itemsize, facts)
    if tiling.programs:
        held = max(1, tiling.programs // facts.multiprocessors)
    slots = held * facts.multiprocessors
    full, rest = divmod(tiles, slots)
    cycles = LAUNCH
    if full:
        cycles += full * _wave(tiling, work, held)
    if rest:
        cycles += _wave(tiling, work, ceil(rest / facts.multiprocessors))
    return max(cycles, LAUNCH + _memory(work))


def _memory(work: Work) -> float:
    """Cycles to read the factors and to write the result once."""
    elements = work.rows * work.inner + work.inner * work.lanes + work.rows * work.lanes
    return work.batch * elements * work.itemsize / MEMORY_BYTES


def _wave(tiling: MatmulTiling, work: Work, programs: int) -> float:
    """Cycles in which one multiprocessor finishes so many programs that run side by side."""
    tile = tiling.xblock * tiling.rblock
    steps = ceil(work.inner / tiling.kblock)
    share = next(share for points, share in SHARES.items() if tile >= points)
    thin = min(tiling.xblock, tiling.rblock)
    share *= 1.0 if thin >= 64 else 0.5  # thinner tiles do not use the wide instructions
    arithmetic = tile * tiling.kblock * work.itemsize / 2 / PRODUCTS_PER_CYCLE / share
    reading = stage_bytes(tiling, work.itemsize) / L2_BYTES
    if tile >= 128 * 128 and tiling.warps < 8:
        arithmetic *= 1.2  # 128 and more sums a thread leave few registers
    if tiling.programs and programs > 1 and tiling.warps >= 8:
        arithmetic *= 1.3
    step = max(programs * max(arithmetic, reading), LATENCY / (tiling.stages - 1))
    if tiling.stages == 2:
        step += LATENCY / 2 / programs  # products wait for reads
    epilogue = tile * work.point_cost / OPERATIONS_PER_CYCLE
    # One program's epilogue and its first reads are hidden behind another's steps.
    alone = epilogue + (0.0 if tiling.programs else LATENCY)
    hidden = alone if programs == 1 else alone * programs * 0.6
    if tiling.described_stores:
        hidden *= 0.9  # the next tile need not wait for them
    return steps * step + hidden
