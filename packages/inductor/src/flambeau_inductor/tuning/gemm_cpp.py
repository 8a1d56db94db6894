"""Ways to multiply matrices on a CPU.

extern aten.addmm.out(b, x, w) -> buf0; nest relu: buf0 -> buf1
0  oneDNN's kernel, then the nest's; if w is frozen it is in the order of this kernel, once; or
   both in one call, if the nest is a post-operation of oneDNN's (`onednn_epilogues.py`)
1  the library's kernel, then the nest's
2  w in panels, by a kernel or, if it is frozen, once; one kernel for the product and the nest
3  if w is not frozen: one kernel that reads or copies panels of it as it goes; for few rows, dot
   products of rows of x and w, where w may be computed lane by lane (quantised weights)
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.contraction import contraction_of, extents
from flambeau_inductor.codegen.cpp.matmul import (
    computes_lanes,
    digits_of,
    dot_strides,
    left_stride,
    right_stride,
)
from flambeau_inductor.codegen.cpp.matmul_tiling import (
    MOST_DOT_ROWS,
    NUMBERS,
    candidates,
    dot_tiling,
    step_of,
)
from flambeau_inductor.graph_passes.multiply_by_onednn import has_fast_blas, is_large_product
from flambeau_inductor.indexing.expressions import evaluate_expr
from flambeau_inductor.ir import Axis, Load, Store
from flambeau_inductor.lowering.contraction import contraction_nest
from flambeau_inductor.lowering.packing import PackedFactor, packing_nest
from flambeau_inductor.nodes import Buffer, ExternCall, TensorRef
from flambeau_inductor.scheduler.build_kernel import build_kernel
from flambeau_inductor.scheduler.fusion import merged
from flambeau_inductor.scheduler.groups import group_of
from flambeau_inductor.tuning.onednn_epilogues import onednn_epilogue
from flambeau_inductor.tuning.product_ways import (
    ProductWays,
    fresh_buffer,
    gemm_backends,
    kernel_of,
    label_of,
)
from flambeau_inductor.tuning.prologue import with_prologue
from flambeau_inductor.tuning.ways import Way
from flambeau_prims.sizes import hint_of
from flambeau_prims.strides import is_contiguous

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.codegen.contraction import Contraction, Extents
    from flambeau_inductor.codegen.cpp.matmul_tiling import CppMatmulTiling
    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.lowering.contraction import Product
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.tuning.order import GroupOrder
    from flambeau_runtime.tuning.contest import CpuFacts

MOST_TILINGS = 3
"""Tilings that are measured of one form: a compiler takes about a second for each."""

FEW_ROWS = 32
"""For more rows, dot products read the right factor too often."""

FEWEST_WEIGHTS = 64 * 64
"""For smaller matrices oneDNN's operator costs more time than it saves."""

CPU_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.int8})

SAMPLES = (0, 1, 7, 31, 33, 100, 1000)


class CppWays(ProductWays):
    """The ways of one product on a CPU."""

    def __init__(
        self, schedule: Schedule, order: GroupOrder, options: InductorOptions, number: int,
        nest: Group, product: Product, facts: CpuFacts,
    ) -> None:  # fmt: skip
        super().__init__(schedule, order, options, number, nest, product)
        self.facts = facts
        self.is_frozen = product.right.buffer in self.lowered.frozen
        """Whether the right factor is the same in nearly all calls."""

    @staticmethod
    def multiplies(product: Product) -> bool:
        """Whether there may be ways to compute a product. In bfloat16, ATen's kernel for int8
        weights reads beyond them, and may end the process that measures it (torch 2.13).
        """
        in_bfloat16 = product.left.spec.dtype is torch.bfloat16
        if in_bfloat16 and product.right.spec.dtype is torch.int8:
            return False
        return product.stride is None and product.left.spec.dtype in CPU_DTYPES

    def title(self, numbers: Sequence[int]) -> str:
        """As torch names products: those by a transposed weight are linear layers."""
        left, right = self.product.factors
        added = self.product.added
        if len(right.spec.shape) != 2 or right.spec.stride[0] != 1:
            return f"{self.product.name}({self.shapes()})"
        width = right.spec.shape[::-1]
        shapes = [left.spec.shape, width] + ([] if added is None else [added.spec.shape])
        name = "linear_unary" if numbers[-1] != self.number else "linear"
        return f"{name}({', '.join('x'.join(map(str, shape)) for shape in shapes)})"

    def key(self, kernel: LoopKernel) -> str:
        """Whether the right factor is packed once, too."""
        return f"{super().key(kernel)} frozen={self.is_frozen} {self.facts}"

    def ways(
        self, before: Sequence[int], consumer: int | None, fused: Group, kernel: LoopKernel
    ) -> Iterator[Way]:
        """Kernels of ours."""
        static = all(isinstance(size, int) for size in self.product.right.spec.shape)
        if static and "CPP" in gemm_backends(self.options):
            for made, way in enumerate(self.own_ways(before, consumer)):
                yield replace(way, name=f"cpp_packed_gemm_{made} ({way.name})")

    def usual(self, before: Sequence[int], consumer: int | None, extern: Way) -> list[Way]:
        """First what runs without tuning: oneDNN's kernel on a frozen weight in its order, or on
        large factors (`graph_passes.multiply_by_onednn`).
        """
        library = self.library_way(before, consumer)
        if library is None:
            return [extern]
        left, right = (factor.spec for factor in self.product.factors)
        bias = None if self.product.added is None else self.product.added.spec
        first = self.is_frozen or (is_large_product(left, right, bias) and not has_fast_blas())
        fused = self.library_way(before, consumer, fuse=True)
        libraries = [library] if fused is None else [fused, library]
        return [*libraries, extern] if first else [extern, *libraries]

    def own_ways(self, before: Sequence[int], consumer: int | None) -> Iterator[Way]:
        """Products packed in several widths; and products that compute the left factor, too."""
        groups = self.schedule.groups
        if self.product.right.spec.dtype is not self.dtype:
            yield from filter(None, [self.dot_way(before, (), consumer)])
            return
        if self.product.bounds is not None:
            yield from self.grouped_ways(before, consumer)
            return
        # A computed factor is computed again for each block of lanes: cheap or not, it is measured.
        right = {n for n in before if self.product.right.buffer in groups[n].stores}
        forms = [(), tuple(n for n in before if n not in right)]
        if self.only_copy(forms[1]):
            forms.reverse()  # a task copies its rows in any case
        for joined in dict.fromkeys(forms):
            apart = tuple(groups[number] for number in before if number not in joined)
            if self.is_frozen:
                yield from self.packed_ways(joined, apart, consumer)
                continue
            dots = self.dot_way(joined, apart, consumer)
            if dots is not None:
                yield dots
            rows = hint_of(self.product.left.spec.shape[-2])
            if dots is None or rows > MOST_DOT_ROWS:  # else packing would take the most time
                yield from self.packed_ways(joined, apart, consumer)
                if len(self.product.right.spec.shape) == 2 and not right:
                    yield from self.unpacked_ways(joined, apart, consumer)
        if right and len(self.product.right.spec.shape) == 2:
            dots = self.dot_way(tuple(before), (), consumer)
            if dots is not None:
                yield dots
            else:
                yield from self.unpacked_ways(before, (), consumer)

    def grouped_ways(self, before: Sequence[int], consumer: int | None) -> Iterator[Way]:
        """One kernel for the products of all groups of rows."""
        apart = tuple(self.schedule.groups[number] for number in before)
        if self.is_frozen:
            yield from self.packed_ways((), apart, consumer)
            return
        dots = self.dot_way((), apart, consumer)
        if dots is not None:
            yield dots
        yield from self.unpacked_ways((), apart, consumer)

    def only_copy(self, numbers: Sequence[int]) -> bool:
        """Whether groups gather a left factor that tasks copy, and compute nothing."""
        kernels = [
            kernel_of(self.schedule.groups[number], set(), self.schedule, self.options)
            for number in numbers
        ]
        return self.dtype is torch.int8 and all(
            isinstance(statement, (Load, Store)) for kernel in kernels for statement in kernel.body
        )

    def packed_ways(
        self, joined: Sequence[int], apart: tuple[Group, ...], consumer: int | None
    ) -> Iterator[Way]:
        """The right factor is packed by a kernel before the product's."""
        name = fresh_buffer(self.lowered, self.number)
        for tiling in self.tilings(joined, consumer, packed=True):
            factor = self.packed_factor(name, tiling)
            buffers = {**self.lowered.buffers, name: factor.buffer}
            group = self.union(group_of(contraction_nest(self.call, self.lowered, factor)),
                               joined, consumer)  # fmt: skip
            if group is None:
                return
            launch = self.launch(group, joined, consumer, buffers)
            contraction = contraction_of(launch.kernel)
            if contraction is None or not reads_panels(launch, contraction, factor):
                return
            pack = group_of(packing_nest(self.call, self.lowered, self.product.right, factor))
            yield Way(
                str(tiling), (*apart, pack, replace(group, tiling=tiling)),
                self.made() | {name: factor.buffer},
            )  # fmt: skip

    def unpacked_ways(
        self, joined: Sequence[int], apart: tuple[Group, ...], consumer: int | None
    ) -> Iterator[Way]:
        """Panels are read where they lie, or copied by each task."""
        group = self.union(group_of(contraction_nest(self.call, self.lowered)), joined, consumer)
        if group is None:
            return
        kernel = self.launch(group, joined, consumer, self.lowered.buffers).kernel
        contraction = contraction_of(kernel)
        if contraction is None or len(kernel.inner) != 1:
            return
        lies_well = right_stride(kernel, contraction) is not None
        for tiling in self.tilings(joined, consumer, packed=False)[:2]:
            tiling = replace(tiling, copies_right=not lies_well)
            yield Way(
                f"{tiling} {'unpacked' if lies_well else 'copied'}",
                (*apart, replace(group, tiling=tiling)), self.made(),
            )  # fmt: skip

    def dot_way(
        self, joined: Sequence[int], apart: tuple[Group, ...], consumer: int | None
    ) -> Way | None:
        """Both factors lie along the inner axis, and few rows read the right one; or what that is
        computed from does: lanes are computed as they are needed, and no other memory is read.
        """
        group = self.union(group_of(contraction_nest(self.call, self.lowered)), joined, consumer)
        if group is None:
            return None
        kernel = self.launch(group, joined, consumer, self.lowered.buffers).kernel
        contraction = contraction_of(kernel)
        if contraction is None or self.sizes(kernel, contraction).rows > FEW_ROWS:
            return None
        grain = 0
        if computes_lanes(kernel, contraction):
            digits = digits_of(contraction.right, kernel.inner[0])
            grain = 1 if digits is None else digits.step
        elif dot_strides(kernel, contraction) is None:
            return None
        tiling = dot_tiling(self.sizes(kernel, contraction), self.dtype, self.facts, grain)
        parts = (*apart, replace(group, tiling=tiling))
        return Way(f"{tiling} unpacked", parts, self.made())

    def tilings(
        self, joined: Sequence[int], consumer: int | None, *, packed: bool
    ) -> list[CppMatmulTiling]:
        """The tilings to measure."""
        group = self.union(group_of(contraction_nest(self.call, self.lowered)), joined, consumer)
        if group is None:
            return []
        kernel = self.launch(group, joined, consumer, self.lowered.buffers).kernel
        contraction = contraction_of(kernel)
        if contraction is None or len(kernel.inner) != 1:
            return []
        sizes = self.sizes(kernel, contraction)
        numbers = NUMBERS[step_of(self.dtype, self.facts)]
        return candidates(
            sizes, self.dtype, self.facts, packed=packed,
            copies_left=left_stride(kernel, contraction, numbers) is None,
            tiles_copy_left=left_stride(kernel, contraction, numbers, tiles=True) is None,
            count=min(self.options.max_autotune_candidates, MOST_TILINGS),
        )  # fmt: skip

    def sizes(self, kernel: LoopKernel, contraction: Contraction) -> Extents:
        """The product's sizes, likely ones where they are symbolic."""
        hints = {
            symbol.name: value for symbol, value in zip(kernel.sizes, kernel.hints, strict=True)
        }
        return extents(contraction, kernel.inner, lambda size: int(evaluate_expr(size, hints)))

    def packed_factor(self, name: str, tiling: CppMatmulTiling) -> PackedFactor:
        """The right factor in the panels of a tiling."""
        *batch, depth, lanes = map(int, self.product.right.spec.shape)
        return PackedFactor(
            name, self.dtype, tuple(batch), depth, lanes, tiling.width, tiling.numbers,
            tiling.block_of_steps // tiling.numbers,
        )  # fmt: skip

    def union(self, nest: Group, joined: Sequence[int], consumer: int | None) -> Group | None:
        """The product with the groups that join it, or None."""
        groups = self.schedule.groups
        result: Group | str | None = nest
        for number in joined:
            assert isinstance(result, type(nest))
            (name,) = groups[number].stores
            result = with_prologue(result, groups[number], name)
            if result is None:
                return None
        if consumer is not None:
            assert isinstance(result, type(nest))
            result = merged(self.lowered, result, groups[consumer], self.options)
        return None if isinstance(result, str) else result

    def launch(
        self, group: Group, joined: Sequence[int], consumer: int | None, buffers: dict[str, Buffer]
    ) -> ScheduledKernel:
        """The kernel of a group and the buffers that it takes."""
        numbers = (*joined, self.number) + (() if consumer is None else (consumer,))
        dtypes = {name: buffer.spec.dtype for name, buffer in buffers.items()}
        internal = self.internal(numbers)
        return build_kernel(group, internal, dtypes, self.lowered.sizes, self.options)

    # oneDNN

    def library_way(
        self, before: Sequence[int], consumer: int | None, *, fuse: bool = False
    ) -> Way | None:
        """oneDNN's product, by a frozen weight in the order of its kernels; None if it has none.
        `fuse`: with the consumer, if that is one of its post-operations.
        """
        product, groups = self.product, self.schedule.groups
        if self.call.kwargs or not self.product.is_plain or not self.takes_packed():
            return None
        left, right = product.factors
        spec = right.spec.replace(shape=right.spec.shape[::-1], stride=right.spec.stride[::-1])
        weight = TensorRef(right.buffer, spec)
        packs: list[Group] = []
        buffers: dict[str, Buffer] = {}
        if self.is_frozen:
            name = fresh_buffer(self.lowered, self.number)
            packed = buffers[name] = Buffer(name, spec.replace(stride=None, offset=0), "extern")
            rows = left.spec.shape[0]
            pack = self.extern(
                "mkldnn._reorder_linear_weight.default",
                (weight, rows if isinstance(rows, int) else None), name,
            )  # fmt: skip
            weight, packs = TensorRef(name, packed.spec), [group_of(pack)]
        elif not is_contiguous(spec) and not is_contiguous(right.spec):
            return None
        post, result = self.epilogue(before, consumer) if fuse else (("none", ""), self.result)
        if post is None:
            return None
        rows_of_result = self.lowered.buffers[result].spec.shape[:-1]
        left = TensorRef(
            left.buffer, left.spec.replace(shape=(*rows_of_result, left.spec.shape[1]), stride=None)
        ) if len(rows_of_result) > 1 else left  # fmt: skip
        call = self.extern(
            "mkldnn._linear_pointwise.default",
            (left, weight, product.added, post[0], [], post[1]), result,
        )  # fmt: skip
        if fuse:
            made = replace(self.lowered.buffers[result], role="extern")
            return Way(
                f"mkldnn._linear_pointwise {post[0]}",
                (*(groups[n] for n in before), *packs, group_of(call)),
                {result: made, **buffers},
            )
        numbers = (*before, self.number) + (() if consumer is None else (consumer,))
        words = ["mkldnn._linear_pointwise" if n == self.number else label_of(groups[n])
                 for n in numbers]  # fmt: skip
        made = replace(self.lowered.buffers[self.result], role="extern")
        behind = () if consumer is None else (groups[consumer],)
        return Way(
            " + ".join(words),
            (*(groups[n] for n in before), *packs, group_of(call), *behind),
            {self.result: made, **buffers},
        )

    def epilogue(
        self, before: Sequence[int], consumer: int | None
    ) -> tuple[tuple[str, str] | None, str]:
        """The consumer as oneDNN's post-operation, or None, and the buffer of its results."""
        if consumer is None or self.result not in self.internal((*before, self.number, consumer)):
            return None, ""
        nodes = self.schedule.groups[consumer].nodes
        buffers = self.lowered.buffers
        if len(nodes) != 1 or len(nodes[0].writes) != 1:
            return None, ""
        (target,) = nodes[0].writes
        own, spec = buffers[self.result].spec, buffers[target].spec
        fits = spec.dtype is own.dtype and is_contiguous(spec) and is_contiguous(own)
        if not fits or spec.shape[-1:] != own.shape[-1:] or spec.numel != own.numel:
            return None, ""
        if spec.shape != own.shape and not is_contiguous(self.product.left.spec):
            return None, ""
        return onednn_epilogue(nodes[0], self.result, target), target

    def takes_packed(self) -> bool:
        """Whether oneDNN has a fast kernel for the product by a packed weight."""
        left, right = self.product.factors
        added, result = self.product.added, self.lowered.buffers[self.result].spec
        if len(right.spec.shape) != 2 or left.spec.stride[1] != 1 or not is_contiguous(result):
            return False
        depth, width = right.spec.shape
        if not isinstance(depth, int) or not isinstance(width, int):
            return False
        if added is not None and (added.spec.shape != (width,) or not is_contiguous(added.spec)):
            return False
        return depth * width >= FEWEST_WEIGHTS and has_fast_kernels(self.dtype)

    def extern(self, op: str, args: tuple[Any, ...], result: str) -> ExternCall:
        """A call of one of oneDNN's operators."""
        reads = {arg.buffer for arg in args if isinstance(arg, TensorRef)}
        call = self.call
        return ExternCall(
            call.order, op, args, {}, (result,), (), reads, call.device, where=call.where,
            computes=call.computes,
        )  # fmt: skip


def has_fast_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies matrices of this dtype fast here."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    if dtype in name:
        return bool(getattr(torch.ops.mkldnn, name[dtype])())
    return dtype is torch.float32


def reads_panels(launch: ScheduledKernel, contraction: Contraction, factor: PackedFactor) -> bool:
    """Whether a kernel's right operand is the packed factor, and its lanes in their order are the
    factor's: some places are compared. Lanes of several matrices (the left operand is the same for
    all) follow one another if no matrix has a panel with a gap.
    """
    load, kernel = contraction.right.load, launch.kernel
    if load is None or len(kernel.inner) != 1:
        return False
    params = (param.name for param in kernel.params)
    names = dict(zip(params, launch.buffers, strict=True))
    lanes = contraction.lanes
    if names[load.buffer] != factor.name or not all(isinstance(a.size, int) for a in lanes):
        return False
    step, width = factor.shape[-1], factor.width
    count = prod(int(axis.size) for axis in lanes)
    if count != factor.lanes and factor.lanes % width:
        return False
    for lane in (*SAMPLES, factor.lanes, count - 1):
        for depth in SAMPLES:
            if lane >= count or depth >= factor.depth:
                continue
            place = {kernel.inner[0].symbol.name: depth}
            place |= {axis.symbol.name: 0 for axis in contraction.batch}
            place |= unravelled(lane, lanes)
            if contraction.groups is not None:
                place[contraction.groups.value] = 0
            row = lane // width * factor.shape[-3] + depth // step
            expected = (row * width + lane % width) * step + depth % step
            if int(evaluate_expr(load.index, place)) != expected:
                return False
    return True


def unravelled(number: int, axes: Sequence[Axis]) -> dict[str, int]:
    """The indices of axes at one of their points."""
    result = {}
    for axis in reversed(axes):
        number, result[axis.symbol.name] = divmod(number, int(axis.size))
    return result
