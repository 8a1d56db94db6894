"""The reference generator: kernels as loop IR text, run by `evaluate` in eager torch. For tests,
and for reading.

backend = ReferenceBackend()
program = compile_graph(graph, backends={"cpu": backend})
results = backend.load(program)(*tensors)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.check import check_kernel
from flambeau_inductor.codegen.base import Emitted, unique_kernels
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.ir import format_kernel
from flambeau_runtime.dims import evaluate
from flambeau_runtime.native import below_autograd_keyset
from flambeau_runtime.program import Kernel, Launch, Program, Source
from flambeau_runtime.python_executor import PythonExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import LoopKernel, ScheduledKernel
    from flambeau_inductor.options import InductorOptions


class ReferenceBackend:
    """Keeps the kernels it has emitted, by name, for programs it is asked to load."""

    def __init__(self) -> None:
        self.kernels: dict[str, LoopKernel] = {}

    def combine(self, scheduled: Sequence[ScheduledKernel], name: str) -> Emitted | None:
        """None: a launch costs nothing."""
        return None

    def emit(self, scheduled: Sequence[ScheduledKernel], options: InductorOptions) -> Emitted:
        """Each distinct kernel as text, checked."""
        names = unique_kernels(scheduled)
        for kernel, name in names.items():
            check_kernel(kernel)
            self.kernels[name] = kernel
        text = "\n\n".join(f"{name}: {format_kernel(kernel)}" for kernel, name in names.items())
        launches = tuple(Launch(names[one.kernel], one.buffers, one.ints) for one in scheduled)
        kernels = tuple(Kernel(name, 0) for name in names.values())
        return Emitted((Source("reference", text),), kernels, launches)

    def load(self, program: Program) -> _ReferenceExecutor:
        """A callable that runs a program this backend has emitted."""
        return _ReferenceExecutor(program, self.kernels)


class _ReferenceExecutor(PythonExecutor):
    """The runtime's Python executor with kernels run by the evaluator."""

    def __init__(self, program: Program, kernels: dict[str, LoopKernel]) -> None:
        super().__init__(program, {}, below_autograd_keyset())
        self._reference = kernels

    def _run(self, step: Any, values: dict[str, Any], sizes: dict[str, int]) -> None:
        if not isinstance(step, Launch):
            super()._run(step, values, sizes)
            return
        ints = [evaluate(dim, sizes) for dim in step.ints]
        run_kernel(self._reference[step.kernel], [values[name] for name in step.buffers], ints)
