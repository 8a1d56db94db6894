"""How a matrix product is cut into tiles for Triton, and which ways of cutting are worth measuring.

    4096 x 4096 x 4096 bf16 on 132 multiprocessors  ->  128x256x64 with 8 warps, 128x128x64, ...

`estimate` is a small model: whole waves of tiles over the multiprocessors, each tile bounded by the
matrix units or by the memory that it reads. It ranks; measurements decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.indexing.expressions import linear_parts
from flambeau_inductor.ir import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import sympy
    import torch

    from flambeau_inductor.codegen.contraction import Contraction, Extents, Operand
    from flambeau_inductor.ir import Axis, LoopKernel
    from flambeau_runtime.tuning.contest import DeviceFacts

RESERVED = 4096
"""Bytes of shared memory that a program needs besides its tiles: barriers, layout changes."""

HOPELESS = 2.0
"""What the model expects to take so many times the best one's time is not measured."""

SMALL_TILE = 64 * 64
LARGE_TILE = 128 * 256

DESCRIPTOR_BYTES = 128
"""Scratch memory of one tensor descriptor."""


@dataclass(frozen=True)
class MatmulTiling:
    """Tiles of XBLOCK rows by RBLOCK lanes, summed in steps of KBLOCK.

    `height`: how many tiles of one column follow one another, for the L2 cache. `tf32`: round
    float32 operands. `programs`: so many programs take tiles in turn; 0: one program a tile.
    `descriptors`: read operands through tensor descriptors (the copy engine of sm_90);
    `described_stores`: write results so, too, where they are aligned.
    """

    xblock: int
    rblock: int
    kblock: int
    warps: int = 4
    stages: int = 3
    height: int = 8
    tf32: bool = False
    programs: int = 0
    descriptors: bool = False
    described_stores: bool = False

    def __str__(self) -> str:
        text = f"{self.xblock}x{self.rblock}x{self.kblock} warps={self.warps} stages={self.stages}"
        text += f" height={self.height}" if self.height != 8 else ""
        text += " persistent" if self.programs else ""
        text += " tma" if self.descriptors else ""
        return text + (" tma-store" if self.described_stores else "")


BLOCKS = (
    # xblock, rblock, kblock (of 2-byte elements), warps, stages
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 128, 8, 3),
    (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 256, 64, 4, 4),
    (256, 64, 64, 4, 4), (64, 64, 64, 4, 5), (64, 64, 128, 4, 4), (128, 64, 128, 4, 4),
    (64, 128, 128, 4, 4), (64, 32, 128, 4, 5), (32, 64, 128, 4, 5), (32, 32, 128, 4, 5),
    (16, 64, 128, 4, 5), (16, 128, 128, 4, 4), (16, 32, 256, 4, 4), (16, 256, 64, 4, 4),
    (32, 128, 64, 4, 5), (128, 32, 64, 4, 5), (64, 16, 128, 4, 5), (128, 16, 128, 4, 4),
)  # fmt: skip


def candidates(
    kernel: LoopKernel, sizes: Extents, facts: DeviceFacts, *, tf32: bool, count: int
) -> list[MatmulTiling]:
    """At most `count` tilings of a product that the model prefers, best first."""
    contraction = contraction_of(kernel)
    assert contraction is not None
    itemsize = contraction.left.dtype.itemsize
    sides = (contraction.left, contraction.rows), (contraction.right, contraction.lanes)
    described = (
        facts.capability >= 90
        and sizes.static
        and not contraction.batch
        and all(describe(operand, axes, kernel.inner) is not None for operand, axes in sides)
    )
    stores = len(described_stores(kernel, contraction)) if described else 0
    estimates = {
        tiling: estimate(tiling, sizes, itemsize, facts)
        for tiling in _possible(sizes, itemsize, described, stores, facts, tf32)
    }
    if not estimates:
        return []
    bound = HOPELESS * min(estimates.values())
    ranked = sorted((t for t in estimates if estimates[t] <= bound), key=estimates.__getitem__)
    if itemsize == 4 and not tf32:
        count = min(count, 4)  # no matrix units: a library's kernel is as good
    return distinct(ranked)[:count]


def distinct(ranked: Sequence[MatmulTiling]) -> list[MatmulTiling]:
    """The best of each form: of one size of tile, with descriptors for nothing, for what is read,
    for what is written, too. What the model says of two tilings of one form differs by less than
    its error.
    """
    best: dict[tuple[int, ...], MatmulTiling] = {}
    for each in ranked:
        # Many small tiles wait for memory: there the length of a step matters.
        depth = each.kblock if each.xblock * each.rblock <= SMALL_TILE else 0
        stages = each.stages if each.descriptors else 0
        form = each.xblock, each.rblock, depth, stages, each.descriptors, each.described_stores
        best.setdefault(form, each)
    return list(best.values())


def _possible(
    sizes: Extents, itemsize: int, described: bool, stores: int, facts: DeviceFacts, tf32: bool
) -> Iterator[MatmulTiling]:
    m, n, k = sizes.rows, sizes.lanes, sizes.inner
    least = 32 if itemsize == 1 else 16
    yielded = set()
    for xblock, rblock, kblock, warps, stages in BLOCKS:
        kblock = min(max(least, kblock * 2 // itemsize), _fitting(k, least))
        if xblock >= 2 * _fitting(m) or rblock >= 2 * _fitting(n):
            continue
        if itemsize == 4 and not tf32:
            # Without matrix units each product is an instruction: large tiles are long programs.
            if xblock * rblock > 128 * 128:
                continue
            kblock = min(kblock, 32)
        if itemsize == 1 and min(xblock, rblock) < 32:
            continue  # not every layout of one-byte operands is taken in thinner tiles
        stages = min(stages, facts.shared // ((xblock + rblock) * kblock * itemsize))
        if stages < 2:
            continue
        plain = MatmulTiling(xblock, rblock, kblock, warps, stages, tf32=tf32)
        if plain in yielded:
            continue
        yielded.add(plain)
        yield plain
        tiles = ceil(m / xblock) * ceil(n / rblock)
        if described and min(xblock, rblock) >= 64 and tiles > facts.multiprocessors:
            programs = facts.multiprocessors
            persistent = replace(plain, programs=programs, descriptors=True)
            yield persistent
            stage = (xblock + rblock) * kblock * itemsize
            # Operands do not pass through registers: one more stage may fit in.
            deeper = min(stages + 1, (facts.shared - RESERVED) // stage)
            if deeper > stages and xblock * rblock >= LARGE_TILE:
                yield replace(persistent, stages=deeper)
            rest = facts.shared - RESERVED - stores * xblock * rblock * 2
            if stores and rest >= 2 * stage:
                fitting = min(stages, rest // stage)
                yield replace(persistent, described_stores=True, stages=fitting)


def _fitting(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())


def estimate(tiling: MatmulTiling, sizes: Extents, itemsize: int, facts: DeviceFacts) -> float:
    """Relative time: waves of tiles, each as long as its arithmetic or its reading, and a start."""
    m, n, k = sizes.rows, sizes.lanes, sizes.inner
    tiles = ceil(m / tiling.xblock) * ceil(n / tiling.rblock) * sizes.batch
    stage = (tiling.xblock + tiling.rblock) * tiling.kblock * itemsize
    resident = max(1, min(facts.shared // (stage * tiling.stages), 8))
    if tiling.programs:
        resident = 1
    waves = ceil(tiles / facts.multiprocessors)
    # Tiles that share a multiprocessor share its units, and hide one another's waiting.
    steps = ceil(k / tiling.kblock)
    arithmetic = tiling.xblock * tiling.rblock * tiling.kblock / 4096  # per cycle, about
    thin = min(tiling.xblock, tiling.rblock)
    arithmetic *= 1.0 if thin >= 128 else 1.2 if thin >= 64 else 2.0 if thin >= 32 else 4.0
    if tiling.xblock * tiling.rblock < 128 * 256:
        arithmetic *= 1.1
    reading = stage / 40  # bytes a cycle and multiprocessor from the L2 cache
    latency = 600 / tiling.stages / min(resident, max(1, waves))
    start = 2000 if not tiling.programs else 1000 + 1000 / waves
    if tiling.described_stores:
        start *= 0.9  # the next tile need not wait for them
    return waves * (steps * max(arithmetic, reading, latency) + start / min(resident, waves))


@dataclass(frozen=True)
class Description:
    """A matrix in memory as a tensor descriptor sees it: its offset, the stride of the slower dim,
    and whether the inner axes are the slower one.
    """

    offset: int
    stride: int
    inner_is_slow: bool


def describe(operand: Operand, axes: Sequence[Axis], inner: Sequence[Axis]) -> Description | None:
    """An operand over outer `axes` and the inner axes as a matrix; None if it is computed, or lies
    in memory as the copy engine cannot read it.
    """
    load = operand.load
    return None if load is None else describe_access(load.index, operand.dtype, axes, inner)


def describe_access(
    index: sympy.Expr, dtype: torch.dtype, axes: Sequence[Axis], inner: Sequence[Axis]
) -> Description | None:
    """What an index expression walks over, as a matrix; None if it is none whose rows start at
    multiples of 16 bytes.
    """
    if not axes or not all(isinstance(axis.size, int) for axis in (*axes, *inner)):
        return None
    names = frozenset(axis.symbol.name for axis in (*axes, *inner))
    parts = linear_parts(index, names)
    if parts is None or not parts[1].is_Integer:
        return None
    across, along = _flat_step(axes, parts[0]), _flat_step(inner, parts[0])
    if across is None or along is None or 1 not in (across, along):
        return None
    slow = 0 if along == 1 else 1
    stride, offset = (across, along)[slow], int(parts[1])
    fast_extent = prod(int(axis.size) for axis in (inner, axes)[slow])
    itemsize = dtype.itemsize
    if stride * itemsize % 16 or offset * itemsize % 16 or stride < fast_extent:
        return None
    return Description(offset, stride, slow == 1)


def described_stores(kernel: LoopKernel, contraction: Contraction) -> dict[str, Description]:
    """The results, by buffer, that tensor descriptors can write: rows of two-byte elements. Wider
    ones would take too much shared memory on their way.
    """
    dtypes = {param.name: param.dtype for param in kernel.params}
    result = {}
    for statement in contraction.epilogue:
        if isinstance(statement, Store) and statement.mask is None:
            dtype = dtypes[statement.buffer]
            description = describe_access(
                statement.index, dtype, contraction.rows, contraction.lanes
            )
            if description and not description.inner_is_slow and dtype.itemsize == 2:
                result[statement.buffer] = description
    return result


def _flat_step(axes: Sequence[Axis], coefficients: dict[str, object]) -> int | None:
    """The stride of some axes taken as one; None if they cannot be."""
    step = None
    expected = None
    for axis in reversed(axes):
        own = coefficients.get(axis.symbol.name)
        if own is None or not getattr(own, "is_Integer", False) or not isinstance(axis.size, int):
            return None
        own = int(own)  # type: ignore[call-overload]
        if expected is not None and own != expected:
            return None
        step = own if step is None else step
        expected = own * axis.size
    return step
