"""Ways to multiply matrices and to do what follows.

    extern aten.addmm.out(b, x, w) -> buf0; nest gelu: buf0 -> buf1
    0  the library's kernel, then the nest's
    1  one kernel of ours for the product and the nest, cut in one way; 2, ... in others
    n  few tiles and long sums: sums of parts of the inner axis, then one kernel that adds them up

A nest joins the product if it is pointwise over the product's points, and nothing has to run
between them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.codegen.triton.matmul_tiling import candidates, extents
from flambeau_inductor.indexing.expressions import evaluate_expr
from flambeau_inductor.ir import format_kernel
from flambeau_inductor.lowering.contraction import (
    contraction_nest,
    product_of_call,
    product_result,
    split_contraction,
)
from flambeau_inductor.nodes import ExternCall
from flambeau_inductor.scheduler.build_kernel import build_kernel
from flambeau_inductor.scheduler.fusion import merged
from flambeau_inductor.scheduler.groups import group_of
from flambeau_inductor.tuning.order import GroupOrder
from flambeau_inductor.tuning.prologue import with_prologue
from flambeau_inductor.tuning.unread_results import cut_to_reads
from flambeau_inductor.tuning.ways import Part, Way, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.lowering.contraction import Product
    from flambeau_inductor.nodes import Buffer, Lowered
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_runtime.tuning.contest import DeviceFacts

TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.int8: 0.0}
TF32_TOLERANCE = 2e-3
FLOAT32_TOLERANCE = 2e-5

SPLIT_PARTS = (2, 4, 8, 16, 32)
MIN_PART = 256
"""A part of the inner axis is not shorter."""

SPLIT_CANDIDATES = 2
"""Tilings measured for each number of parts."""


def gemm_parts(schedule: Schedule, options: InductorOptions, facts: DeviceFacts) -> Iterator[Part]:
    """The matrix products of a schedule with their ways."""
    order = GroupOrder(schedule.lowered, schedule.groups)
    for number, group in enumerate(schedule.groups):
        call = group.nodes[0]
        if not isinstance(call, ExternCall) or not call.device.startswith("cuda"):
            continue
        product = product_of_call(call)
        if product is None or "TRITON" not in _backends(options):
            continue
        nest = group_of(contraction_nest(call, schedule.lowered))
        kernel = _kernel(nest, set(), schedule, options)
        if contraction_of(kernel) is None:
            continue
        part = _GemmWays(schedule, order, options, facts, number, nest, product).part()
        if part is not None and len(part.ways) > 1:
            yield part


def _backends(options: InductorOptions) -> set[str]:
    return {name.strip().upper() for name in options.max_autotune_gemm_backends.split(",")}


def _kernel(
    group: Group, internal: set[str], schedule: Schedule, options: InductorOptions
) -> LoopKernel:
    lowered = schedule.lowered
    dtypes = {name: buffer.spec.dtype for name, buffer in lowered.buffers.items()}
    return build_kernel(group, internal, dtypes, lowered.sizes, options).kernel


class _GemmWays:
    """The ways of one product."""

    def __init__(
        self, schedule: Schedule, order: GroupOrder, options: InductorOptions, facts: DeviceFacts,
        number: int, nest: Group, product: Product,
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.lowered: Lowered = schedule.lowered
        self.order = order
        self.options = options
        self.facts = facts
        self.number = number
        self.nest = nest
        self.call: ExternCall = schedule.groups[number].nodes[0]  # type: ignore[assignment]
        self.result = product_result(self.call)
        self.product = product
        self.dtype = product.left.spec.dtype
        self.tf32 = (
            self.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest"
        )

    def part(self) -> Part | None:
        """The product with what precedes and what follows, or alone."""
        groups = self.schedule.groups
        before = self.producers()
        consumer, fused = self.consumer(before)
        numbers = (*before, self.number) + (() if consumer is None else (consumer,))
        extern = Way(
            " + ".join(self.call.op if n == self.number else _label(groups[n]) for n in numbers),
            tuple(groups[n] for n in numbers),
        )
        kernel = _kernel(fused, self.internal(numbers), self.schedule, self.options)
        ways = list(self.fused_ways(fused, kernel))
        if not before:
            ways += self.split_ways(consumer)
        if "ATEN" in _backends(self.options) or not ways:
            ways.insert(0, extern)
        title = f"{self.product.name}({self.shapes()})"
        part = part_of(self.schedule, numbers, title, self.key(kernel), self.tolerance(), ways)
        if part is not None:
            for number in numbers:
                if number != self.number:
                    self.order.join(self.number, number)
        return part

    def producers(self) -> list[int]:
        """The groups that compute the factors for this product alone, and join it."""
        result: list[int] = []
        groups = self.schedule.groups
        for ref in self.product.factors:
            for number, group in enumerate(groups[: self.number]):
                if ref.buffer not in group.stores or self.order.is_joined(number):
                    continue
                if self.internal((number, self.number), ref.buffer) == set():
                    continue
                if not self.order.may_join(number, self.number):
                    continue
                union = with_prologue(self.nest, group, ref.buffer)
                if union is None:
                    continue
                internal = self.internal((*result, number, self.number))
                kernel = _kernel(union, internal, self.schedule, self.options)
                if contraction_of(kernel) is not None:
                    self.nest = union
                    result.append(number)
        return result

    def consumer(self, before: Sequence[int]) -> tuple[int | None, Group]:
        """The group that joins the product, and the union; or None, and the product alone."""
        groups = self.schedule.groups
        for number in range(self.number + 1, len(groups)):
            group = groups[number]
            if self.result not in group.loads or group.inner or self.order.is_joined(number):
                continue
            if not self.order.may_join(self.number, number):
                continue
            internal = self.internal((*before, self.number, number))
            nest = self.nest
            if self.result in internal:
                nest = cut_to_reads(self.nest, group, self.result) or nest
            union = merged(self.lowered, nest, group, self.options)
            if isinstance(union, str):
                continue
            kernel = _kernel(union, internal, self.schedule, self.options)
            if contraction_of(kernel) is not None:
                return number, union
        return None, self.nest

    def internal(self, numbers: tuple[int, ...], name: str = "") -> set[str]:
        """Of what these groups write (or of `name`), what none but they reads."""
        groups, kept = self.schedule.groups, self.schedule.kept
        names = {name} if name else {n for i in numbers for node in groups[i].nodes
                                     for n in node.writes}  # fmt: skip
        others = [g for n, g in enumerate(groups) if n not in numbers]
        touched = {n for g in others for node in g.nodes for n in node.reads | node.writes}
        inputs = {n for n in names if self.lowered.buffers[n].role == "input"}
        return names - touched - kept - inputs

    def made(self) -> dict[str, Buffer]:
        """The product's buffer, allocated by the program whoever computes it."""
        return {self.result: replace(self.lowered.buffers[self.result], role="computed")}

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
        kernel = _kernel(self.nest, set(), self.schedule, self.options)
        plain = contraction_of(kernel)
        if plain is None or kernel.sizes:
            return
        whole = extents(plain, kernel.inner, int)
        length, points = whole.inner, whole.points
        buffers = self.lowered.buffers
        # Other products of the schedule may be split, too.
        name = f"buf{1 + max(_number(each) for each in buffers) + self.number}"
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

    def shapes(self) -> str:
        """The factors' shapes: "4096x1024, 1024x4096"."""
        refs = self.product.factors
        return ", ".join("x".join(map(str, ref.spec.shape)) for ref in refs)

    def key(self, kernel: LoopKernel) -> str:
        """Everything that the times depend on: the kernel's text has strides, dtypes, epilogue."""
        text = f"{self.call.op} {self.call.kwargs} {format_kernel(kernel)} {kernel.hints}"
        return f"{text} tf32={self.tf32}"

    def tolerance(self) -> float:
        """How far results may differ."""
        if self.dtype is torch.float32:
            return TF32_TOLERANCE if self.tf32 else FLOAT32_TOLERANCE
        return TOLERANCES[self.dtype]


def _label(group: Group) -> str:
    words = [node.label for node in group.nodes if not isinstance(node, ExternCall)]
    return "_".join(dict.fromkeys("_".join(words).split("_")))


def _number(name: str) -> int:
    digits = name.removeprefix("buf")
    return int(digits) if digits.isdigit() else -1
