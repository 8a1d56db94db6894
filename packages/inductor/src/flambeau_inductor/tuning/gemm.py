"""The matrix products of a schedule; and the ways to multiply on a GPU, Triton kernels in several
tilings.

n  few tiles and long sums: sums of parts of the inner axis, then one kernel that adds them up
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.contraction import contraction_of, extents
from flambeau_inductor.codegen.triton.matmul_tiling import candidates
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
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.product_ways import (
    ProductWays,
    fresh_buffer,
    gemm_backends,
    kernel_of,
)
from flambeau_inductor.tuning.ways import Part, Way
from flambeau_runtime.tuning.contest import CpuFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.lowering.contraction import Product
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_runtime.tuning.contest import DeviceFacts

TF32_TOLERANCE = 2e-3

SPLIT_PARTS = (2, 4, 8, 16, 32)
MIN_PART = 256
"""A part of the inner axis is not shorter."""

SPLIT_CANDIDATES = 2
"""Tilings measured for each number of parts."""


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
        if product is None or (on_cpu and product.stride is not None):
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
        self.tf32 = (
            self.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest"
        )

    def title(self, numbers: Sequence[int]) -> str:
        """The product and its factors' shapes."""
        return f"{self.product.name}({self.shapes()})"

    def ways(
        self, before: Sequence[int], consumer: int | None, fused: Group, kernel: LoopKernel
    ) -> Iterator[Way]:
        """One kernel, and two for long sums."""
        yield from self.fused_ways(fused, kernel)
        if not before:
            yield from self.split_ways(consumer)

    def key(self, kernel: LoopKernel) -> str:
        """How operands are rounded, too."""
        return f"{super().key(kernel)} tf32={self.tf32}"

    def tolerance(self) -> float:
        """More, where operands are rounded."""
        return TF32_TOLERANCE if self.tf32 else super().tolerance()

    def fused_ways(self, group: Group, kernel: LoopKernel) -> Iterator[Way]:
        """One kernel, in several tilings."""
        contraction = contraction_of(kernel)
        if contraction is None:
            return
        hints = {
            symbol.name: value for symbol, value in zip(kernel.sizes, kernel.hints, strict=True)
        }
        sizes = extents(contraction, kernel.inner, lambda size: evaluate_expr(size, hints))
        for tiling in candidates(
            kernel, sizes, self.facts, tf32=self.tf32,
            count=self.options.max_autotune_candidates,
        ):  # fmt: skip
            yield Way(str(tiling), (replace(group, tiling=tiling),), self.made())

    def split_ways(self, consumer: int | None) -> Iterator[Way]:
        """Two kernels: sums of parts, then their sum and what follows."""
        kernel = kernel_of(self.nest, set(), self.schedule, self.options)
        plain = contraction_of(kernel)
        if plain is None or kernel.sizes:
            return
        whole = extents(plain, kernel.inner, int)
        length, points = whole.inner, whole.points
        buffers = self.lowered.buffers
        # Other products of the schedule may be split, too.
        name = fresh_buffer(self.lowered, self.number)
        for parts in SPLIT_PARTS:
            chunk = length // parts
            blocks = points // (64 * 64)
            if length % parts or chunk % 64 or chunk < MIN_PART:
                continue
            if blocks * parts > 4 * self.facts.multiprocessors:
                break
            first, second, buffer = split_contraction(self.call, self.lowered, parts, name)
            rest: Group | str = group_of(second)
            if consumer is not None:
                rest = merged(self.lowered, group_of(second), self.schedule.groups[consumer],
                              self.options)  # fmt: skip
            if isinstance(rest, str):
                return
            dtypes = {key: each.spec.dtype for key, each in buffers.items()} | {
                name: buffer.spec.dtype
            }
            group = group_of(first)
            kernel = build_kernel(group, set(), dtypes, self.lowered.sizes, self.options).kernel
            contraction = contraction_of(kernel)
            if contraction is None:
                return
            sizes = extents(contraction, kernel.inner, int)
            for tiling in candidates(
                kernel, sizes, self.facts, tf32=self.tf32,
                count=SPLIT_CANDIDATES,
            ):  # fmt: skip
                yield Way(
                    f"{parts} parts {tiling}", (replace(group, tiling=tiling), rest),
                    self.made() | {name: buffer},
                )  # fmt: skip
