"""Which ways of cutting a matrix product into tiles are worth measuring.

    4096 x 4096 x 4096 bf16 on 132 multiprocessors  ->  128x256x64 with 8 warps, 128x128x64, ...

`matmul_estimate.py` ranks them; measurements decide.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.codegen.packed_operand import steps_of
from flambeau_inductor.codegen.triton.matmul_estimate import (
    RESERVED,
    Work,
    epilogue_cost,
    estimate,
    resident,
    stage_bytes,
)
from flambeau_inductor.codegen.triton.matmul_tiling import (
    MatmulTiling,
    describe,
    described_stores,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.codegen.contraction import Contraction, Extents
    from flambeau_inductor.ir import Axis, LoopKernel
    from flambeau_runtime.tuning.contest import DeviceFacts

HOPELESS = 1.7
"""What the model expects to take so many times the best one's time is not measured."""

BLOCKS = (
    # xblock, rblock, kblock (of 2-byte elements), warps, stages
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 4),
    (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 128, 128, 8, 3),
    (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 3), (64, 128, 64, 4, 3),
    (64, 256, 64, 4, 4), (256, 64, 64, 4, 4), (64, 256, 64, 4, 2), (256, 64, 64, 4, 2),
    (64, 64, 64, 4, 5), (64, 64, 64, 4, 3), (64, 64, 128, 4, 4), (64, 64, 128, 4, 3),
    (128, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 128, 128, 4, 3),
    (64, 32, 128, 4, 5), (64, 32, 256, 4, 3), (32, 64, 128, 4, 5), (32, 32, 128, 4, 5),
    (32, 32, 256, 4, 4), (32, 128, 64, 4, 5), (32, 128, 128, 4, 4), (128, 32, 64, 4, 5),
    (16, 64, 128, 4, 5), (16, 64, 256, 4, 4), (16, 128, 128, 4, 4), (16, 32, 256, 4, 4),
    (16, 32, 128, 2, 6), (16, 32, 512, 4, 3), (16, 16, 256, 2, 6), (16, 16, 512, 4, 4),
    (16, 256, 64, 4, 4), (64, 16, 128, 4, 5), (128, 16, 128, 4, 4),
)  # fmt: skip
"""What is worth a thought; the model chooses among these by the sizes of a product."""

ROBUST = (128, 128, 64, 8, 3)
"""Measured wherever several are and the model does not think it hopeless: on an H200 the best for
products of medium size, and never far behind.
"""

SEVERAL = 4


def candidates(
    kernel: LoopKernel,
    sizes: Extents,
    facts: DeviceFacts,
    *,
    tf32: bool,
    count: int,
    rough: bool = False,
) -> dict[MatmulTiling, float]:
    """At most `count` tilings of a product that the model prefers, best first, with the cycles that
    it expects of each.
    """
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
    work = Work(
        sizes.batch, sizes.rows, sizes.lanes, sizes.inner, itemsize,
        epilogue_cost(contraction.epilogue),
    )  # fmt: skip
    shared = shared_points(contraction, kernel.inner)
    estimates = {
        tiling: estimate(tiling, work, facts)
        for tiling in _possible(sizes, itemsize, described, stores, facts, tf32, shared)
    }
    if not estimates:
        return {}
    bound = HOPELESS * min(estimates.values())
    ranked = sorted((t for t in estimates if estimates[t] <= bound), key=estimates.__getitem__)
    if itemsize == 4 and not tf32:
        count = min(count, SEVERAL)  # no matrix units: a library's kernel is as good
    chosen = ranked[:count]
    if count > SEVERAL:
        robust = [each for each in ranked[count:] if _is_robust(each)]
        chosen[len(chosen) - len(robust) :] = robust
    return {replace(tiling, rough=rough): estimates[tiling] for tiling in chosen}


def shared_points(contraction: Contraction, inner: Sequence[Axis]) -> int:
    """How many points of the inner axis share a scale of a computed factor; 0: none do, or a step
    over so few would be too short.
    """
    if len(inner) != 1:
        return 0
    bodies = (contraction.left.body, contraction.right.body)
    steps = [step for body in bodies for step in steps_of(body, inner[0]) if step >= 64]
    return min(steps, default=0)


def _possible(
    sizes: Extents, itemsize: int, described: bool, stores: int, facts: DeviceFacts, tf32: bool,
    shared: int,
) -> Iterator[MatmulTiling]:  # fmt: skip
    """Each tiling of BLOCKS that suits the sizes, in its forms: plain; persistent programs that
    read through descriptors; those that write through them, too. No step is longer than what
    `shared` points have in common.
    """
    m, n, k = sizes.rows, sizes.lanes, sizes.inner
    least = 32 if itemsize == 1 else 16
    yielded: set[MatmulTiling] = set()
    for xblock, rblock, kblock, warps, stages in BLOCKS:
        kblock = min(max(least, kblock * 2 // itemsize), _fitting(k, least))
        kblock = min(kblock, shared) if shared else kblock
        if xblock >= 2 * _fitting(m, least) or rblock >= 2 * _fitting(n, least):
            continue
        if itemsize == 4 and not tf32:
            # Without matrix units each product is an instruction: large tiles are long programs.
            if xblock * rblock > 128 * 128:
                continue
            kblock = min(kblock, 32)
        if itemsize == 1 and min(xblock, rblock) < 32:
            continue  # not every layout of one-byte operands is taken in thinner tiles
        plain = MatmulTiling(xblock, rblock, kblock, warps, stages, tf32=tf32)
        stage = stage_bytes(plain, itemsize)
        plain = replace(plain, stages=min(stages, facts.shared // stage))
        tiles = ceil(m / xblock) * ceil(n / rblock)
        forms = [plain]
        if described and min(xblock, rblock) >= 64:
            forms += _described(plain, tiles, stores, itemsize, facts)
        for each in forms:
            if each.stages >= 2 and each not in yielded:
                yielded.add(each)
                yield each


def _described(
    plain: MatmulTiling, tiles: int, stores: int, itemsize: int, facts: DeviceFacts
) -> Iterator[MatmulTiling]:
    """The tiling with descriptors: for so many tiles that programs take several in turn, as many
    programs as fit.
    """
    stage, shared = stage_bytes(plain, itemsize), facts.shared - RESERVED
    for written in (0, stores) if stores else (0,):
        stages = min(plain.stages, (shared - written * plain.xblock * plain.rblock * 2) // stage)
        if stages < 2:
            continue
        each = replace(plain, stages=stages, descriptors=True, described_stores=written > 0)
        held = min(2, resident(each, itemsize, facts))
        programs = held * facts.multiprocessors
        yield replace(each, programs=programs) if tiles > programs else each


def _is_robust(tiling: MatmulTiling) -> bool:
    sizes = tiling.xblock, tiling.rblock, tiling.kblock, tiling.warps, tiling.stages
    return sizes == ROBUST and not tiling.descriptors


def _fitting(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())
