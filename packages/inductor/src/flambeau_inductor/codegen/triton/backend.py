"""The code generator for GPUs: one Triton source a distinct kernel, one launch a use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.base import Emitted, kernel_name
from flambeau_inductor.codegen.short_erf import shorten_erf
from flambeau_inductor.codegen.triton.combine import (
    Part,
    can_combine,
    combined_grid,
    combined_meta,
    write_combined,
)
from flambeau_inductor.codegen.triton.kernel import needs_debug, signature, write_kernel
from flambeau_inductor.codegen.triton.matmul import (
    matmul_constants,
    matmul_grid,
    scratch_bytes,
    write_matmul,
)
from flambeau_inductor.codegen.triton.matmul_tiling import MatmulTiling
from flambeau_inductor.codegen.triton.packed_sum import unpack_sum
from flambeau_inductor.codegen.triton.short_sigmoid import shorten_sigmoid
from flambeau_inductor.codegen.triton.tiling import Tiling, choose_tiling, constants_of, grid
from flambeau_inductor.lowering.narrow_integers import narrowed
from flambeau_runtime.program import Kernel, Launch, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.options import InductorOptions

    AnyTiling = Tiling | MatmulTiling


MOST_WARPS = 8
"""Up to so many warps, each thread may have all the registers that it can name: a kernel whose
values spill is built again with more warps.
"""


class TritonBackend:
    """`codegen.base.KernelBackend` for CUDA devices."""

    def emit(self, scheduled: Sequence[ScheduledKernel], options: InductorOptions) -> Emitted:
        """A source and a kernel for each distinct LoopKernel and tiling; grids from each launch's
        sizes.
        """
        names: dict[tuple[LoopKernel, AnyTiling], str] = {}
        cut: dict[tuple[LoopKernel, object], tuple[LoopKernel, AnyTiling]] = {}
        sources: list[Source] = []
        kernels: list[Kernel] = []
        launches: list[Launch] = []
        for launch in scheduled:
            form = launch.kernel, launch.tiling
            if form not in cut:  # the layers of a model have equal kernels
                tiling = tiling_of(launch)
                is_product = isinstance(tiling, MatmulTiling)
                cut[form] = launch.kernel if is_product else unpack_sum(launch.kernel), tiling
            kernel, tiling = cut[form]
            launch = replace(launch, kernel=kernel)
            name = names.get((kernel, tiling))
            if name is None:
                name = names[kernel, tiling] = kernel_name(kernel, len(names))
                needs = meta(kernel, tiling) | ({"fp_fusion": False} if options.strict else {})
                kernels.append(Kernel(name, len(sources), needs))
                text = write(kernel, name, tiling, strict=options.strict)
                sources.append(Source("triton", text))
            launches.append(Launch(name, launch.buffers, launch.ints, launch_grid(launch, tiling)))
        return Emitted(tuple(sources), tuple(kernels), tuple(launches))

    def combine(self, scheduled: Sequence[ScheduledKernel], name: str) -> Emitted | None:
        """One launch of several kernels; None if there is no such kernel."""
        parts: list[Part] = []
        for launch in scheduled:
            tiling = tiling_of(launch)
            if isinstance(tiling, MatmulTiling) or not can_combine(launch.kernel, tiling):
                return None
            # Vectors at the ends of rows need pointers that are known to be aligned.
            kernel = narrowed(shorten_erf(unpack_sum(launch.kernel)))
            parts.append((kernel, replace(tiling, vectors=False)))
        needs = combined_meta(parts)
        most = max(MOST_WARPS, *(tiling.warps for _, tiling in parts))
        buffers = tuple(buffer for launch in scheduled for buffer in launch.buffers)
        return Emitted(
            (Source("triton", write_combined(parts, name)),),
            (Kernel(name, 0, needs | {"most_warps": most}),),
            (Launch(name, buffers, (), combined_grid(parts)),),
        )


def tiling_of(launch: ScheduledKernel) -> AnyTiling:
    """How a kernel is cut: as it was measured to be best, or as its form suggests."""
    if isinstance(launch.tiling, (Tiling, MatmulTiling)):
        return launch.tiling
    return choose_tiling(unpack_sum(launch.kernel))


def write(kernel: LoopKernel, name: str, tiling: AnyTiling, *, strict: bool = False) -> str:
    """The source text of a kernel; `strict`: of its scalar operators as they are."""
    if not strict:
        kernel = shorten_sigmoid(shorten_erf(kernel))
    if isinstance(tiling, MatmulTiling):
        return write_matmul(kernel, name, tiling)
    return write_kernel(narrowed(kernel), name, tiling, strict=strict)


def meta(kernel: LoopKernel, tiling: AnyTiling) -> dict[str, object]:
    """What the build needs to know of a kernel (`flambeau_runtime.program.Kernel`)."""
    divisible = [param.name for param in kernel.params]
    divisible += [
        symbol.name
        for symbol, divisor in zip(kernel.sizes, kernel.divisible, strict=False)
        if divisor % 16 == 0
    ]
    result: dict[str, object] = {
        "signature": signature(kernel),
        "constants": {},
        "num_warps": tiling.warps,
        "num_stages": 2,
        "divisible_by_16": divisible,
        "debug": needs_debug(kernel),
    }
    if isinstance(tiling, MatmulTiling):
        result |= {"constants": matmul_constants(tiling), "num_stages": tiling.stages}
        if tiling.descriptors:
            # Descriptors need aligned matrices.
            result |= {
                "scratch": scratch_bytes(kernel, tiling),
                "unaligned_constants": {"DESCRIPTORS": 0},
            }
        return result
    if tiling.vectors:
        result["unaligned_constants"] = {"VECTORS": 0}
    constants = constants_of(tiling)
    return result | {"constants": constants, "most_warps": max(tiling.warps, MOST_WARPS)}


def launch_grid(scheduled: ScheduledKernel, tiling: AnyTiling) -> tuple[int | str, ...]:
    """The number of programs of a launch."""
    kernel = scheduled.kernel
    dims = {symbol.name: dim for symbol, dim in zip(kernel.sizes, scheduled.ints, strict=True)}
    if isinstance(tiling, MatmulTiling):
        return matmul_grid(kernel, tiling, dims)
    return grid(kernel, tiling, dims)
