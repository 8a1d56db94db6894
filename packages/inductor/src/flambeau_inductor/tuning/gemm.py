"""The matrix products of a schedule; and the ways to multiply on a GPU, Triton kernels in several
tilings.

1  one kernel; for a single row or column also a loop nest of sums
m  computed factors: their kernels, then the product's, which reads aligned matrices
n  few tiles and long sums: sums of parts of the inner axis, then one kernel that adds them up
r  rows that are reduced: one kernel that reduces them in tiles, then one that combines these
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.contraction import contraction_of, extents
from flambeau_inductor.codegen.triton.matmul_candidates import candidates
from flambeau_inductor.codegen.triton.matmul_estimate import LAUNCH, MEMORY_BYTES
from flambeau_inductor.codegen.triton.matmul_tiling import SMALL_TILE
from flambeau_inductor.codegen.triton.packed_sum import unpack_sum
from flambeau_inductor.codegen.triton.tiling import choose_tiling
from flambeau_inductor.indexing.expressions import evaluate_expr
from flambeau_inductor.lowering.contraction import (
    contraction_nest,
    product_of_call,
    split_contraction,
)
from flambeau_inductor.nodes import ExternCall
from flambeau_inductor.scheduler.build_kernel import build_kernel
from flambeau_inductor.scheduler.fusion import merged
from flambeau_inductor.scheduler.groups import group_of
from flambeau_inductor.tuning.gemm_cpp import CppWays
from flambeau_inductor.tuning.loops import tiling_name, variations
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.product_ways import (
    ProductWays,
    fresh_buffer,
    gemm_backends,
    kernel_of,
)
from flambeau_inductor.tuning.row_statistics import Stages, row_reductions
from flambeau_inductor.tuning.ways import Part, Way
from flambeau_runtime.tuning.contest import CpuFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.codegen.contraction import Extents
    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.lowering.contraction import Product
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_runtime.tuning.contest import DeviceFacts

TF32_TOLERANCE = 2e-3

ROW_TILE = 128
"""Lanes of the tiles in which the model sees rows reduced."""

SPLIT_PARTS = (2, 4, 8, 16, 32)
MIN_PART = 256
"""A part of the inner axis is not shorter."""

SPLIT_CANDIDATES = 4
"""Numbers of parts that are measured, each with the tiling that the model prefers."""


def gemm_parts(
    schedule: Schedule, options: InductorOptions, facts: DeviceFacts | CpuFacts
) -> Iterator[Part]:
    """The matrix products of a schedule on the device of these facts, with their ways."""
    order = GroupOrder(schedule.lowered, schedule.groups)
    on_cpu = isinstance(facts, CpuFacts)
    for number, group in enumerate(schedule.groups):
        call = group.nodes[0]
        if not isinstance(call, ExternCall) or (call.device == "cpu") != on_cpu:
            continue
        product = product_of_call(call)
        if product is None or (on_cpu and not CppWays.multiplies(product)):
            continue
        if not on_cpu and "TRITON" not in gemm_backends(options):
            continue
        nest = group_of(contraction_nest(call, schedule.lowered))
        if contraction_of(kernel_of(nest, set(), schedule, options)) is None:
            continue
        what = schedule, order, options, number, nest, product
        ways = CppWays(*what, facts) if isinstance(facts, CpuFacts) else TritonWays(*what, facts)
        part = ways.part()
        if part is not None and len(part.ways) > 1:
            yield part


class TritonWays(ProductWays):
    """The ways of one product on a GPU."""

    def __init__(
        self, schedule: Schedule, order: GroupOrder, options: InductorOptions, number: int,
        nest: Group, product: Product, facts: DeviceFacts,
    ) -> None:  # fmt: skip
        super().__init__(schedule, order, options, number, nest, product)
        self.facts = facts
        self.count = options.max_autotune_candidates
        self.tf32 = (
            self.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest"
        )

    @property
    def rounding(self) -> dict[str, bool]:
        """How products may be rounded."""
        return {"tf32": self.tf32, "rough": self.product.rough}

    def title(self, numbers: Sequence[int]) -> str:
        """The product and its factors' shapes."""
        return f"{self.product.name}({self.shapes()})"

    def ways(
        self, before: Sequence[int], consumer: int | None, fused: Group, kernel: LoopKernel
    ) -> Iterator[Way]:
        """One kernel, those for computed factors, and two for long sums."""
        count = self.count
        if before:
            yield from self.ways_after(before, consumer, -(-count // 2))
            yield from self.fused_ways(fused, kernel, -(-count // 2))
        else:
            yield from self.fused_ways(fused, kernel, count)
            yield from self.split_ways(consumer)

    def reducer(self, before: Sequence[int]) -> int | None:
        """The first group that reduces rows in a way that can be cut into tiles; none with strict
        numerics, as where nobody measures.
        """
        after = range(self.number + 1, len(self.schedule.groups))
        for number in after if not self.options.strict else ():
            if self.order.is_joined(number) or not self.order.may_join(self.number, number):
                continue
            if self.in_tiles((*before, self.number, number)) is not None:
                self.count = -(-self.count // 2)  # the others reduce rows in their kernel
                return number
        return None

    def row_ways(self, before: Sequence[int], reducer: int) -> Iterator[Way]:
        """Rows reduced in the tiles of the product's kernel, which has several tilings."""
        numbers = (*before, self.number, reducer)
        whole = self.in_tiles(numbers)
        if whole is None:
            return
        known, sizes = {ROW_TILE: whole}, extents_of(whole.kernel)
        for tiling in candidates(
            whole.kernel, sizes, self.facts, count=self.count, **self.rounding
        ):
            stages = known.get(tiling.rblock) or self.in_tiles(numbers, tiling.rblock)
            if stages is not None:
                known[tiling.rblock] = stages
                groups = replace(stages.first, tiling=tiling), stages.second
                yield Way(f"reduced rows {tiling}", groups, self.made() | stages.buffers)

    def in_tiles(self, numbers: tuple[int, ...], points: int = ROW_TILE) -> Stages | None:
        """The product with the first stage of the last of the groups `numbers`, which reduces its
        rows in tiles of so many points, and the second stage.
        """
        internal = self.internal(numbers)
        reducer = self.schedule.groups[numbers[-1]]
        rows = row_reductions(reducer, self.result, internal, self.lowered, self.options)
        if rows is None:
            return None
        name = fresh_buffer(self.lowered, self.number)
        return rows.stages(self.nest, points, name, internal, self.lowered, self.options)

    def key(self, kernel: LoopKernel) -> str:
        """How operands are rounded, too."""
        return f"{super().key(kernel)} tf32={self.tf32}"

    def tolerance(self) -> float:
        """More, where operands are rounded."""
        return TF32_TOLERANCE if self.tf32 else super().tolerance()

    def fused_ways(self, group: Group, kernel: LoopKernel, count: int) -> Iterator[Way]:
        """One kernel, in several tilings; a single row or column also as a loop nest of sums."""
        if contraction_of(kernel) is None:
            return
        sizes = extents_of(kernel)
        for tiling in candidates(kernel, sizes, self.facts, count=count, **self.rounding):
            yield Way(str(tiling), (replace(group, tiling=tiling),), self.made())
        if min(sizes.rows, sizes.lanes) == 1:
            own = choose_tiling(unpack_sum(kernel))
            for each in (own, *variations(own)):
                yield Way(f"sums {tiling_name(each)}", (replace(group, tiling=each),), self.made())

    def ways_after(self, before: Sequence[int], consumer: int | None, count: int) -> Iterator[Way]:
        """The factors computed by kernels before the product's, which reads aligned matrices."""
        groups, with_factors = self.schedule.groups, self.nest
        self.nest = group_of(contraction_nest(self.call, self.lowered))
        again, fused = self.consumer(())
        self.nest = with_factors
        numbers = (self.number,) if consumer is None else (self.number, consumer)
        kernel = kernel_of(fused, self.internal(numbers), self.schedule, self.options)
        if again != consumer or contraction_of(kernel) is None:
            return
        sizes = extents_of(kernel)
        first = tuple(groups[number] for number in before)
        for tiling in candidates(kernel, sizes, self.facts, count=count, **self.rounding):
            ordered = (*first, replace(fused, tiling=tiling))
            yield Way(f"factors, {tiling}", ordered, self.made())

    def split_ways(self, consumer: int | None) -> list[Way]:
        """Two kernels: sums of parts, then their sum and what follows. Those that the model
        prefers.
        """
        kernel = kernel_of(self.nest, set(), self.schedule, self.options)
        plain = contraction_of(kernel)
        if plain is None or kernel.sizes or plain.groups is not None:
            return []
        whole = extents(plain, kernel.inner, int)
        ranked: list[tuple[float, Way]] = []
        for parts in SPLIT_PARTS:
            chunk = whole.inner // parts
            if whole.inner % parts or chunk % 64 or chunk < MIN_PART:
                continue
            if whole.points // SMALL_TILE * parts > 4 * self.facts.multiprocessors:
                break
            # Their sum reads every part's.
            after = LAUNCH + parts * whole.points * 4 / MEMORY_BYTES
            way = self.in_parts(parts, consumer)
            if way is not None:
                ranked.append((way[0] + after, way[1]))
        return [way for _, way in sorted(ranked, key=lambda each: each[0])[:SPLIT_CANDIDATES]]

    def in_parts(self, parts: int, consumer: int | None) -> tuple[float, Way] | None:
        """The way with so many parts, and the cycles that the model expects of its first kernel."""
        buffers = self.lowered.buffers
        # Other products of the schedule may be split, too.
        name = fresh_buffer(self.lowered, self.number)
        first, second, buffer = split_contraction(self.call, self.lowered, parts, name)
        rest: Group | str = group_of(second)
        if consumer is not None:
            rest = merged(
                self.lowered, group_of(second), self.schedule.groups[consumer], self.options
            )
        if isinstance(rest, str):
            return None
        dtypes = {key: each.spec.dtype for key, each in buffers.items()} | {name: buffer.spec.dtype}
        group = group_of(first)
        kernel = build_kernel(group, set(), dtypes, self.lowered.sizes, self.options).kernel
        contraction = contraction_of(kernel)
        if contraction is None:
            return None
        sizes = extents(contraction, kernel.inner, int)
        tilings = candidates(kernel, sizes, self.facts, count=1, **self.rounding)
        for tiling, cycles in tilings.items():
            groups = replace(group, tiling=tiling), rest
            return cycles, Way(f"{parts} parts {tiling}", groups, self.made() | {name: buffer})
        return None


def extents_of(kernel: LoopKernel) -> Extents:
    """The sizes of a product, likely ones where they are symbolic."""
    contraction = contraction_of(kernel)
    assert contraction is not None
    hints = {symbol.name: value for symbol, value in zip(kernel.sizes, kernel.hints, strict=True)}
    return extents(contraction, kernel.inner, lambda size: evaluate_expr(size, hints))
