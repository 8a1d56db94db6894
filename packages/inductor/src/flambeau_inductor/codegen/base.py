"""The contract between the scheduler and a code generator.

A generator gets the launches of a whole program, in order, and returns sources, kernels and one
Launch for each. Equal Kernels (they are hashable, in canonical names) must become one kernel of the
source:

    backend = backend_for("cpu")
    emitted = backend.emit(scheduled, options)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flambeau_prims.lazy_exports import import_apart
from flambeau_prims.unsupported import NoCodeGenerator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.options import InductorOptions
    from flambeau_runtime.program import Kernel, Launch, Source


@dataclass(frozen=True)
class Emitted:
    """What a generator makes of the launches on its kind of device.

    `launches[i]` belongs to `scheduled[i]`. `Kernel.source` counts within `sources`; `emit_program`
    renumbers.
    """

    sources: tuple[Source, ...]
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]


class KernelBackend(Protocol):
    """A code generator.  Stateless: one instance serves all threads."""

    def emit(self, scheduled: Sequence[ScheduledKernel], options: InductorOptions) -> Emitted:
        """Generate code for all launches of one program on this kind of device."""

    def combine(self, scheduled: Sequence[ScheduledKernel], name: str) -> Emitted | None:
        """One kernel of this name, and one Launch, for several launches that need no order; None if
        the generator has no such kernels.
        """


BACKENDS = {
    "cpu": ("flambeau_inductor.codegen.cpp.backend", "CppBackend"),
    "cuda": ("flambeau_inductor.codegen.triton.backend", "TritonBackend"),
}
"""Device type -> module and class, loaded at first use (Triton is an optional dependency)."""


def backend_for(device: str) -> KernelBackend:
    """The code generator for a device ("cpu", "cuda:0")."""
    kind = device.partition(":")[0]
    if kind not in BACKENDS:
        raise NoCodeGenerator(
            f"no code generator for device {device!r}; there are: {', '.join(BACKENDS)}"
        )
    module, name = BACKENDS[kind]
    return getattr(import_apart(module), name)()


def unique_kernels(scheduled: Sequence[ScheduledKernel]) -> dict[LoopKernel, str]:
    """Each distinct kernel with its name (device, meaning, number), in order of first launch."""
    names: dict[LoopKernel, str] = {}
    for launch in scheduled:
        kernel = launch.kernel
        if kernel not in names:
            names[kernel] = kernel_name(kernel, len(names))
    return names


def kernel_name(kernel: LoopKernel, number: int) -> str:
    """Device, meaning, number."""
    return f"{kernel.device}_{kernel.label or 'copy'}_{number}"
