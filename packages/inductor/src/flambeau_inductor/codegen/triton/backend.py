"""The code generator for GPUs: one Triton source a distinct kernel, one launch a use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.base import Emitted, unique_kernels
from flambeau_inductor.codegen.triton.kernel import needs_debug, signature, write_kernel
from flambeau_inductor.codegen.triton.tiling import Tiling, choose_tiling, grid
from flambeau_runtime.program import Kernel, Launch, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.options import InductorOptions


class TritonBackend:
    """`codegen.base.KernelBackend` for CUDA devices."""

    def emit(self, scheduled: Sequence[ScheduledKernel], options: InductorOptions) -> Emitted:
        """A source and a kernel for each distinct LoopKernel; grids from each launch's sizes."""
        names = unique_kernels(scheduled)
        tilings = {kernel: choose_tiling(kernel) for kernel in names}
        sources, kernels = [], []
        for number, (kernel, name) in enumerate(names.items()):
            sources.append(Source("triton", write_kernel(kernel, name, tilings[kernel])))
            kernels.append(Kernel(name, number, meta(kernel, tilings[kernel])))
        launches = [
            Launch(names[s.kernel], s.buffers, s.ints, _grid(s, tilings[s.kernel]))
            for s in scheduled
        ]
        return Emitted(tuple(sources), tuple(kernels), tuple(launches))


def meta(kernel: LoopKernel, tiling: Tiling) -> dict[str, object]:
    """What the build needs to know of a kernel (`flambeau_runtime.program.LoopKernel`)."""
    constants = {"XBLOCK": tiling.xblock}
    if tiling.rblock:
        constants["RBLOCK"] = tiling.rblock
    divisible = [param.name for param in kernel.params]
    divisible += [
        symbol.name
        for symbol, divisor in zip(kernel.sizes, kernel.divisible, strict=False)
        if divisor % 16 == 0
    ]
    return {
        "signature": signature(kernel),
        "constants": constants,
        "num_warps": tiling.warps,
        "num_stages": 2,
        "divisible_by_16": divisible,
        "debug": needs_debug(kernel),
    }


def _grid(scheduled: ScheduledKernel, tiling: Tiling) -> tuple[int | str, ...]:
    """The number of programs of a launch."""
    kernel = scheduled.kernel
    dims = {symbol.name: dim for symbol, dim in zip(kernel.sizes, scheduled.ints, strict=True)}
    return grid(kernel, tiling, dims)
