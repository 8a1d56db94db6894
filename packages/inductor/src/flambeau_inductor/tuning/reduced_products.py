"""Reduce rows in the kernel of their matrix product, where nobody measures and that saves much.

extern aten.mm.out(x: 16384 x 64, c: 64 x 8192) -> buf0; nest argmin: buf0 -> buf1
->  one kernel for the product and its tiles' argmin, one that combines tiles: 256 MiB less are
    written, and less are read

Only where a product that nobody else reads is larger than the caches of a GPU, and the model
expects much less time than of a product that is written and then read: our own kernel has to make
up for what a library's does better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.triton.matmul_candidates import candidates
from flambeau_inductor.codegen.triton.matmul_estimate import LAUNCH, MEMORY_BYTES
from flambeau_inductor.lowering.contraction import (
    contraction_nest,
    product_of_call,
    product_result,
)
from flambeau_inductor.nodes import ExternCall
from flambeau_inductor.scheduler.groups import group_of
from flambeau_inductor.tuning.dequantised import HALVES, LEAST_CAPABILITY
from flambeau_inductor.tuning.gemm import TritonWays, extents_of
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.product_ways import kernel_of
from flambeau_inductor.tuning.tune import changed
from flambeau_runtime.tuning.contest import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.nodes import TensorRef
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.tuning.ways import Way
    from flambeau_runtime.tuning.contest import CpuFacts

LEAST_BYTES = 64 << 20
"""Smaller products stay in the caches between the kernel that writes and the one that reads."""

MOST_OF_TIME = 0.8
"""The share of the time of separate kernels that the model may expect at most."""


def reduce_products(
    schedule: Schedule,
    options: InductorOptions,
    facts: Callable[[str], DeviceFacts | CpuFacts | None],
    spends_inputs: bool = False,
) -> Schedule:
    """The schedule with rows reduced in the kernels of large products."""
    order = GroupOrder(schedule.lowered, schedule.groups)
    parts = []
    for number, group in enumerate(schedule.groups if not options.strict else ()):
        call = group.nodes[0]
        if not isinstance(call, ExternCall) or group.device == "cpu":
            continue
        product = product_of_call(call)
        if product is None or not product.is_plain or product.left.spec.dtype not in HALVES:
            continue
        spec = schedule.lowered.buffers[product_result(call)].spec
        elements = spec.numel
        if not isinstance(elements, int) or elements * spec.dtype.itemsize < LEAST_BYTES:
            continue
        known = facts(group.device)
        if not isinstance(known, DeviceFacts) or known.capability < LEAST_CAPABILITY:
            continue
        nest = group_of(contraction_nest(call, schedule.lowered))
        part = _Ways(schedule, order, options, number, nest, product, known).part()
        if part is not None and len(part.ways) > 1:
            part.chosen = 1
            parts.append(part)
    return changed(schedule, parts, options, spends_inputs) if parts else schedule


class _Ways(TritonWays):
    """What the schedule has, and rows reduced in the tiling that the model prefers."""

    @property
    def computed_factors(self) -> tuple[TensorRef, ...]:
        """None: those of large products are computed once."""
        return ()

    def ways(
        self, before: Sequence[int], consumer: int | None, fused: Group, kernel: LoopKernel
    ) -> Iterator[Way]:
        """None: without the reduction, a library's kernel is as good."""
        yield from ()

    def row_ways(self, before: Sequence[int], reducer: int) -> Iterator[Way]:
        """One kernel for the product and the tiles, if that saves much time."""
        numbers = (*before, self.number, reducer)
        tiled = self.in_tiles(numbers)
        if tiled is None or self.result not in self.internal(numbers):
            return
        plain = kernel_of(self.nest, set(), self.schedule, self.options)
        alone, together = (
            min(candidates(each, extents_of(each), self.facts, count=1, **self.rounding).values())
            for each in (plain, tiled.kernel)
        )
        spec = self.lowered.buffers[self.result].spec
        read = int(spec.numel) * spec.dtype.itemsize / MEMORY_BYTES
        if together + LAUNCH <= MOST_OF_TIME * (alone + LAUNCH + read):
            yield next(super().row_ways(before, reducer))
