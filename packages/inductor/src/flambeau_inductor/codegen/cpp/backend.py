"""The code generator for CPUs: one C++ source holds all distinct kernels of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.codegen.base import Emitted, unique_kernels
from flambeau_inductor.codegen.cpp.kernel import write_kernel
from flambeau_inductor.codegen.cpp.prelude import prelude
from flambeau_inductor.codegen.cpp.writer import is_checked
from flambeau_inductor.ir import format_kernel
from flambeau_runtime.program import Kernel, Launch, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.options import InductorOptions

SOURCE_KERNELS = 12
"""So many kernels go into one source; sources are compiled side by side."""


class CppBackend:
    """`codegen.base.KernelBackend` for CPUs."""

    def emit(self, scheduled: Sequence[ScheduledKernel], options: InductorOptions) -> Emitted:
        """Sources of up to SOURCE_KERNELS kernels, and a launch for each scheduled kernel."""
        names = unique_kernels(scheduled)
        sources: list[Source] = []
        kernels: list[Kernel] = []
        pending = list(names.items())
        count = -(-len(pending) // SOURCE_KERNELS)
        for number in range(count):
            group = pending[number::count]
            sources.append(Source("cpp", write_source(group, options.threads)))
            kernels += [
                Kernel(name, number, {"checked": True} if is_checked(kernel) else {})
                for kernel, name in group
            ]
        launches = tuple(Launch(names[s.kernel], s.buffers, s.ints) for s in scheduled)
        return Emitted(tuple(sources), tuple(kernels), launches)


def write_source(kernels: Sequence[tuple[LoopKernel, str]], threads: int = 0) -> str:
    """A translation unit: the prelude, then each kernel below its loop IR as a comment."""
    texts = [write_kernel(kernel, name, threads) for kernel, name in kernels]
    parts = [prelude(texts, parallel=any("#pragma omp parallel" in text for text in texts))]
    for (kernel, _), text in zip(kernels, texts, strict=True):
        comment = "\n".join(f"// {line}" for line in format_kernel(kernel).splitlines())
        parts.append(f"{comment}\n{text}")
    return "\n".join(parts)
