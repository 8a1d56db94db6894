"""The code generator for CPUs: one C++ source holds all distinct kernels of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.base import Emitted, kernel_name
from flambeau_inductor.codegen.cpp.kernel import write_kernel
from flambeau_inductor.codegen.cpp.matmul import MatmulWriter
from flambeau_inductor.codegen.cpp.matmul_tiling import CppMatmulTiling
from flambeau_inductor.codegen.cpp.prelude import prelude
from flambeau_inductor.codegen.cpp.tile_unit import TileUnitWriter
from flambeau_inductor.codegen.cpp.writer import is_checked
from flambeau_inductor.ir import format_kernel
from flambeau_runtime.program import Kernel, Launch, Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.options import InductorOptions

SOURCE_KERNELS = 12
"""So many kernels go into one source; sources are compiled side by side."""


class CppBackend:
    """`codegen.base.KernelBackend` for CPUs."""

    def combine(self, scheduled: Sequence[ScheduledKernel], name: str) -> Emitted | None:
        """None: a launch costs nothing."""
        return None

    def emit(self, scheduled: Sequence[ScheduledKernel], options: InductorOptions) -> Emitted:
        """Sources of up to SOURCE_KERNELS kernels, and a launch for each scheduled kernel."""
        names: dict[tuple[LoopKernel, CppMatmulTiling | None], str] = {}
        for launch in scheduled:
            form = launch.kernel, tiling_of(launch)
            names.setdefault(form, kernel_name(launch.kernel, len(names)))
        sources: list[Source] = []
        kernels: list[Kernel] = []
        pending = list(names.items())
        count = -(-len(pending) // SOURCE_KERNELS)
        for number in range(count):
            group = [(kernel, name) for (kernel, _), name in pending[number::count]]
            tilings = {name: tiling for (_, tiling), name in pending if tiling is not None}
            sources.append(Source("cpp", write_source(group, options.threads, tilings)))
            kernels += [
                Kernel(name, number, {"checked": True} if is_checked(kernel) else {})
                for kernel, name in group
            ]
        launches = tuple(
            Launch(names[s.kernel, tiling_of(s)], s.buffers, s.ints) for s in scheduled
        )
        return Emitted(tuple(sources), tuple(kernels), launches)


def tiling_of(launch: ScheduledKernel) -> CppMatmulTiling | None:
    """How a kernel is cut as a matrix product; None: as loops."""
    return launch.tiling if isinstance(launch.tiling, CppMatmulTiling) else None


def write_source(
    kernels: Sequence[tuple[LoopKernel, str]], threads: int = 0,
    tilings: Mapping[str, CppMatmulTiling] | None = None,
) -> str:  # fmt: skip
    """A translation unit: the prelude, then each kernel below its loop IR as a comment. `tilings`:
    how kernels of these names are cut as matrix products.
    """
    tilings = tilings or {}
    texts = [
        write_matmul(kernel, name, tilings[name], threads)
        if name in tilings
        else write_kernel(kernel, name, threads)
        for kernel, name in kernels
    ]
    shared_out = any("#pragma omp parallel" in text or " share(" in text for text in texts)
    parts = [prelude(texts, parallel=shared_out)]
    for (kernel, _), text in zip(kernels, texts, strict=True):
        comment = "\n".join(f"// {line}" for line in format_kernel(kernel).splitlines())
        parts.append(f"{comment}\n{text}")
    return "\n".join(parts)


def write_matmul(kernel: LoopKernel, name: str, tiling: CppMatmulTiling, threads: int = 0) -> str:
    """The C++ text of a product, without prelude; `threads`: 0 for as many as OpenMP has."""
    writer = TileUnitWriter if tiling.tiles else MatmulWriter
    return writer(kernel, name, tiling, threads).write()
