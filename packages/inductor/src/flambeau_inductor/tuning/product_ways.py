"""A matrix product of a schedule with what precedes and what follows, and the ways to compute it.

    extern aten.addmm.out(b, x, w) -> buf0; nest gelu: buf0 -> buf1
    0  the library's kernel, then the nest's
    1  one kernel of ours for the product and the nest; 2, ... cut in other ways

A nest joins the product if it is pointwise over the product's points, and nothing has to run
between them; on a GPU the first stage of one that reduces rows does, too (`row_statistics.py`).
`gemm.py` lists the ways on a GPU, `gemm_cpp.py` those on a CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.ir import format_kernel
from flambeau_inductor.lowering.contraction import product_result
from flambeau_inductor.nodes import ExternCall
from flambeau_inductor.scheduler.build_kernel import build_kernel
from flambeau_inductor.scheduler.fusion import merged
from flambeau_inductor.tuning.prologue import with_prologue
from flambeau_inductor.tuning.unread_results import cut_to_reads
from flambeau_inductor.tuning.ways import Part, Way, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.lowering.contraction import Product
    from flambeau_inductor.nodes import Buffer, Lowered, TensorRef
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.tuning.order import GroupOrder

TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.int8: 0.0,
              torch.float8_e4m3fn: 1e-2, torch.float8_e5m2: 1e-2}  # fmt: skip
FLOAT32_TOLERANCE = 2e-5


def gemm_backends(options: InductorOptions) -> set[str]:
    """Who takes part."""
    return {name.strip().upper() for name in options.max_autotune_gemm_backends.split(",")}


def kernel_of(
    group: Group, internal: set[str], schedule: Schedule, options: InductorOptions
) -> LoopKernel:
    """The kernel of a group; `internal`: buffers that stay inside."""
    lowered = schedule.lowered
    dtypes = {name: buffer.spec.dtype for name, buffer in lowered.buffers.items()}
    return build_kernel(group, internal, dtypes, lowered.sizes, options).kernel


class ProductWays(ABC):
    """The ways of one product."""

    def __init__(
        self, schedule: Schedule, order: GroupOrder, options: InductorOptions, number: int,
        nest: Group, product: Product,
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.lowered: Lowered = schedule.lowered
        self.order = order
        self.options = options
        self.number = number
        self.nest = nest
        self.call: ExternCall = schedule.groups[number].nodes[0]  # type: ignore[assignment]
        self.result = product_result(self.call)
        self.product = product
        self.dtype = product.left.spec.dtype

    @abstractmethod
    def ways(
        self, before: Sequence[int], consumer: int | None, fused: Group, kernel: LoopKernel
    ) -> Iterator[Way]:
        """Kernels of ours for groups `before`, the product and its `consumer`: together they are
        the group `fused`, which makes `kernel`.
        """

    def reducer(self, before: Sequence[int]) -> int | None:
        """The group that reduces the product's rows, and whose first stage may join the product."""
        return None

    def row_ways(self, before: Sequence[int], reducer: int) -> Iterator[Way]:
        """Kernels for groups `before`, the product and the first stage of its `reducer`, and for
        the second.
        """
        yield from ()

    def usual(self, before: Sequence[int], consumer: int | None, extern: Way) -> list[Way]:
        """The ways of libraries: first what runs without tuning."""
        return [extern]

    @abstractmethod
    def title(self, numbers: Sequence[int]) -> str:
        """The head of the table of measurements."""

    def part(self) -> Part | None:
        """The product with what precedes and what follows, or alone."""
        groups = self.schedule.groups
        before = self.producers()
        consumer, fused = self.consumer(before)
        reducer = self.reducer(before) if consumer is None else None
        last = tuple(number for number in (consumer, reducer) if number is not None)
        numbers = (*before, self.number, *last)
        extern = Way(
            " + ".join(self.call.op if n == self.number else label_of(groups[n]) for n in numbers),
            tuple(groups[n] for n in numbers),
        )
        joined = numbers if reducer is None else numbers[:-1]
        kernel = kernel_of(fused, self.internal(joined), self.schedule, self.options)
        key = self.key(kernel)
        ways = list(self.ways(before, consumer, fused, kernel))
        if reducer is not None:
            key += self.reducer_key(numbers)
            ways = [replace(way, groups=(*way.groups, groups[reducer])) for way in ways]
            ways += self.row_ways(before, reducer)
        if "ATEN" in gemm_backends(self.options) or not ways:
            ways = [*self.usual(before, consumer, extern), *ways]
        title = self.title(numbers)
        part = part_of(self.schedule, numbers, title, key, self.tolerance(), ways)
        if part is not None:
            for number in numbers:
                if number != self.number:
                    self.order.join(self.number, number)
        return part

    @property
    def computed_factors(self) -> tuple[TensorRef, ...]:
        """The factors that the product's kernel may compute."""
        return self.product.factors

    def producers(self) -> list[int]:
        """The groups that compute the factors for this product alone, and join it."""
        result: list[int] = []
        groups = self.schedule.groups
        for ref in self.computed_factors:
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
                kernel = kernel_of(union, internal, self.schedule, self.options)
                contraction = contraction_of(kernel)
                # What is widened to be multiplied is not multiplied narrow.
                if contraction is not None and contraction.left.dtype is self.dtype:
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
            kernel = kernel_of(union, internal, self.schedule, self.options)
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

    def shapes(self) -> str:
        """The factors' shapes: "4096x1024, 1024x4096"."""
        refs = self.product.factors
        return ", ".join("x".join(map(str, ref.spec.shape)) for ref in refs)

    def key(self, kernel: LoopKernel) -> str:
        """Everything that the times depend on: the kernel's text has strides, dtypes, epilogue."""
        return f"{self.call.op} {self.call.kwargs} {format_kernel(kernel)} {kernel.hints}"

    def reducer_key(self, numbers: Sequence[int]) -> str:
        """What times depend on of the last of these groups, which reduces rows: its kernel, and
        whether anybody else reads the product.
        """
        internal = self.internal(tuple(numbers))
        reducer = self.schedule.groups[numbers[-1]]
        kernel = kernel_of(reducer, internal - {self.result}, self.schedule, self.options)
        return f"{format_kernel(kernel)} alone={self.result in internal}"

    def tolerance(self) -> float:
        """How far results may differ."""
        return TOLERANCES.get(self.dtype, FLOAT32_TOLERANCE)


def label_of(group: Group) -> str:
    """What the nests of a group do."""
    words = [node.label for node in group.nodes if not isinstance(node, ExternCall)]
    return "_".join(dict.fromkeys("_".join(words).split("_")))


def fresh_buffer(lowered: Lowered, number: int) -> str:
    """A name for a buffer of the product `number` that no other buffer or product has."""
    return f"buf{1 + max(_number(each) for each in lowered.buffers) + number}"


def _number(name: str) -> int:
    digits = name.removeprefix("buf")
    return int(digits) if digits.isdigit() else -1
