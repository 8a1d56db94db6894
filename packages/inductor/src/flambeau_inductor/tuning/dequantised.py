"""Multiply quantised weights as they are dequantised, where nobody measures and rows are few.

nest dequantise: q, s -> buf0; extern aten.mm.out(x, buf0) -> buf1; nest relu: buf1 -> buf2
->  one kernel that reads q and s, for up to 64 rows of x on a GPU, up to 16 on a CPU

The library's product would read what a kernel has to write first: two to eight times the bytes of
q, twice. With few rows, reading the weights takes all the time that a product takes. With more
rows, or if their number is known only when the program runs, each block of rows would dequantise
again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.contraction import contraction_of, extents
from flambeau_inductor.codegen.triton.matmul_candidates import candidates
from flambeau_inductor.codegen.triton.packed_sum import unpack_sum
from flambeau_inductor.codegen.triton.tiling import choose_tiling
from flambeau_inductor.lowering.contraction import contraction_nest, product_of_call
from flambeau_inductor.nodes import ExternCall
from flambeau_inductor.scheduler.groups import group_of
from flambeau_inductor.tuning.gemm import TritonWays
from flambeau_inductor.tuning.gemm_cpp import CppWays
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.product_ways import ProductWays, kernel_of
from flambeau_inductor.tuning.tune import changed
from flambeau_inductor.tuning.ways import Way
from flambeau_prims.quantised_weights import FEWEST_WEIGHTS, MOST_ROWS
from flambeau_runtime.tuning.contest import CpuFacts, DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.lowering.contraction import Product
    from flambeau_inductor.nodes import TensorRef
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group

MOST_ROWS_BESIDE_UNIT = 7
"""In bfloat16, where a CPU multiplies that by an instruction and numbers share no bytes: on an EPYC
of 2022 dot products of 16 rows take 1.5 times the library's time, of 4 rows four fifths.
"""

SLIM = (16, 2)
"""Lanes and warps of a tile that reads most of its weights ahead: on an H200 the best for up to 16
rows of 4096, by 10 to 20 %; a row of sums is as fast where weights do not share bytes.
"""

HALVES = (torch.float16, torch.bfloat16)
FLOATS_OF_CPU = (*HALVES, torch.float32)
LEAST_CAPABILITY = 80


def multiply_quantised(
    schedule: Schedule,
    options: InductorOptions,
    facts: Callable[[str], DeviceFacts | CpuFacts | None],
    spends_inputs: bool = False,
) -> Schedule:
    """The schedule with quantised weights dequantised by the products that read them."""
    order = GroupOrder(schedule.lowered, schedule.groups)
    parts = []
    for number, product, integers in quantised_products(schedule):
        group = schedule.groups[number]
        known = facts(group.device)
        call = group.nodes[0]
        assert isinstance(call, ExternCall)
        nest = group_of(contraction_nest(call, schedule.lowered))
        ways: ProductWays
        match known:
            case DeviceFacts() if known.capability >= LEAST_CAPABILITY:
                ways = _Ways(schedule, order, options, number, nest, product, known)
            case CpuFacts() if (
                not known.multiplies_bfloat16 or _suits_dots(product, integers)
            ) and contraction_of(kernel_of(nest, set(), schedule, options)) is not None:
                ways = _CpuWays(schedule, order, options, number, nest, product, known)
            case _:
                continue
        part = ways.part()
        if part is not None and len(part.ways) > 1:
            part.chosen = 1
            parts.append(part)
    return changed(schedule, parts, options, spends_inputs) if parts else schedule


def _suits_dots(product: Product, integers: int) -> bool:
    """Whether dot products are fast beside an instruction for bfloat16."""
    rows, weights = product.left.spec.shape[-2], int(product.right.spec.numel)
    shared = 2 * integers <= weights
    in_bfloat16 = product.left.spec.dtype is torch.bfloat16
    return not in_bfloat16 or shared or int(rows) <= MOST_ROWS_BESIDE_UNIT


def quantised_products(schedule: Schedule) -> Iterator[tuple[int, Product, int]]:
    """The numbers of the products with few rows, whose right factor a nest computes from integers
    that take less memory, and the bytes of those.
    """
    buffers = schedule.lowered.buffers
    makers = {
        name: group
        for group in schedule.groups
        if not group.is_extern and (group.device == "cpu" or group.device.startswith("cuda"))
        for name in group.stores
    }
    for number, group in enumerate(schedule.groups):
        call = group.nodes[0]
        if not isinstance(call, ExternCall):
            continue
        product = product_of_call(call)
        on_cpu = group.device == "cpu"
        if product is None or product.stride is not None:
            continue
        if product.left.spec.dtype not in (FLOATS_OF_CPU if on_cpu else HALVES):
            continue
        rows, factor = product.left.spec.shape[-2], product.right
        weights = factor.spec.numel
        if not isinstance(rows, int) or not isinstance(weights, int):
            continue
        if rows > MOST_ROWS.get(call.device.partition(":")[0], 0) or weights < FEWEST_WEIGHTS:
            continue
        if factor.spec.dtype is torch.int8:  # the operator dequantises itself
            yield number, product, weights
        maker = makers.get(factor.buffer)
        if maker is None:
            continue
        integers = [spec for name in maker.loads if (spec := buffers[name].spec)
                    and not spec.dtype.is_floating_point]  # fmt: skip
        size = max((int(s.numel) * s.dtype.itemsize for s in integers), default=0)
        if weights // 4 <= size <= weights:
            yield number, product, size


class _CpuWays(CppWays):
    """The library's kernel, and dot products of lanes that are dequantised before."""

    @property
    def computed_factors(self) -> tuple[TensorRef, ...]:
        """The weights."""
        return (self.product.right,)

    def usual(self, before: Sequence[int], consumer: int | None, extern: Way) -> list[Way]:
        """What the schedule has."""
        return [extern]

    def own_ways(self, before: Sequence[int], consumer: int | None) -> Iterator[Way]:
        """One kernel."""
        stored = self.product.right.spec.dtype is not self.dtype
        way = self.dot_way(before, (), consumer) if before or stored else None
        if way is not None:
            yield way


class _Ways(TritonWays):
    """The library's kernel, and the one that the model prefers."""

    @property
    def computed_factors(self) -> tuple[TensorRef, ...]:
        """The weights."""
        return (self.product.right,)

    def reducer(self, before: Sequence[int]) -> int | None:
        """None: few rows leave few programs for long ones."""
        return None

    def ways(
        self, before: Sequence[int], consumer: int | None, fused: Group, kernel: LoopKernel
    ) -> Iterator[Way]:
        """One kernel; for one row a loop nest of sums."""
        contraction = contraction_of(kernel)
        if contraction is None or not before:
            return
        unpacked = unpack_sum(kernel)
        if self.product.left.spec.shape[-2] == 1 and unpacked is kernel:
            yield Way("sums", (replace(fused, tiling=choose_tiling(kernel)),), self.made())
            return
        sizes = extents(contraction, kernel.inner, int)
        count = self.options.max_autotune_candidates
        ranked = list(candidates(kernel, sizes, self.facts, count=count, **self.rounding))
        slim = [tiling for tiling in ranked if (tiling.rblock, tiling.warps) == SLIM]
        for tiling in (slim or ranked)[:1]:
            yield Way(str(tiling), (replace(fused, tiling=tiling),), self.made())
