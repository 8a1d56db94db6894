"""load: a Program made callable.

    run = load(program)
    (y,) = run(x)

Kernels are built or taken from the cache, then the C executor is assembled; the Python executor
serves where there is no C extension (and wherever it is asked for), with the same results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flambeau_runtime import native
from flambeau_runtime.build import cpp
from flambeau_runtime.c_executor import Assembler
from flambeau_runtime.check import check_arguments, check_program
from flambeau_runtime.freed_memory import keep_freed_memory
from flambeau_runtime.options import RuntimeOptions
from flambeau_runtime.peak_memory import fixed_peak
from flambeau_runtime.prepared import PreparedExecutable
from flambeau_runtime.program import Program, uses_gpu
from flambeau_runtime.python_executor import PythonExecutor

Executable = Callable[..., tuple[Any, ...]]


class CheckedExecutable:
    """An executable that checks its arguments on every call (the `debug` option)."""

    def __init__(self, program: Program, run: Executable) -> None:
        self.program = program
        self.run = run

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        check_arguments(self.program, args)
        return self.run(*args)

    def spend(self, args: list[Any]) -> tuple[Any, ...]:
        """A call with the items of a list, which it empties: inputs go after their last use."""
        check_arguments(self.program, tuple(args))
        return self.run.spend(args)  # type: ignore[attr-defined, no-any-return]


def load(
    program: Program,
    options: RuntimeOptions | None = None,
    on_refusal: Callable[[str], None] | None = None,
    title: str = "",
) -> Executable:
    """Build the program's kernels and return the callable that runs it: `run(*inputs) -> tuple`.

    The callable may be called from any number of threads. It runs below autograd: nothing it does
    is recorded. `run.spend(list)` is a call with the items of a list, which it empties: if nobody
    else holds them, an input that the program frees is gone after its last use.

    `on_refusal` gets the reason why a Program on a GPU is not launched as a CUDA graph where
    `cuda_graphs="always"`; by default that is logged.
    `title` names the graph in profilers (`profile_names.py`).
    """
    return begin_load(program, options, on_refusal, title)()


def begin_load(
    program: Program,
    options: RuntimeOptions | None = None,
    on_refusal: Callable[[str], None] | None = None,
    title: str = "",
) -> Callable[[], Executable]:
    """Begin to build the program's kernels; what waits for them and returns what `load` does. What
    is wrong with a kernel is raised there.
    """
    options = options or RuntimeOptions()
    if program.prepared is not None:
        main = begin_load(replace(program, prepared=None), options, on_refusal, title)
        # The Python executor hands out tensors in a library's order, too.
        prepare = load(program.prepared, replace(options, executor="python", debug=False))
        read = list(map(program.inputs.index, program.prepared.inputs))
        return lambda: PreparedExecutable(main(), prepare, read)
    if options.debug:
        check_program(program)
    if not uses_gpu(program):
        keep_freed_memory(fixed_peak(program))
    kernels = begin_kernels(program, options)

    def finish() -> Executable:
        run = make_executor(program, kernels(), options, on_refusal, title)
        return CheckedExecutable(program, run) if options.debug else run

    return finish


def begin_kernels(program: Program, options: RuntimeOptions) -> Callable[[], dict[str, Any]]:
    """Begin to build the program's kernels; what waits for them and returns the address of each C++
    kernel, and a `_core.GpuKernel` for each Triton kernel.
    """
    indices = [index for index, source in enumerate(program.sources) if source.language == "cpp"]
    others = {source.language for source in program.sources} - {"cpp", "triton"}
    if others:
        raise ValueError(f"{program.name}: kernels in {', '.join(sorted(others))} cannot be built")
    triton: Callable[[], dict[str, Any]] = dict
    if any(source.language == "triton" for source in program.sources):
        from flambeau_runtime import cuda  # imported for a GPU alone

        triton = cuda.begin_kernels(program, options)
    if not indices:
        return triton
    texts = [program.sources[index].text for index in indices]
    compiled = cpp.begin_libraries(texts, options)

    def kernels() -> dict[str, Any]:
        libraries = dict(zip(indices, compiled(), strict=True))
        addresses = triton()
        for kernel in program.kernels:
            if kernel.source in libraries:
                function = getattr(libraries[kernel.source], kernel.name)
                address = ctypes.cast(function, ctypes.c_void_p).value
                assert address is not None
                addresses[kernel.name] = address
        return addresses

    return kernels


def make_executor(
    program: Program,
    kernels: dict[str, Any],
    options: RuntimeOptions,
    on_refusal: Callable[[str], None] | None = None,
    title: str = "",
) -> Executable:
    """The C executor, or the Python one where C cannot be used or Python is asked for."""
    if options.executor not in ("auto", "c", "python"):
        raise ValueError(f"unknown executor {options.executor!r}; known are auto, c, python")
    if options.executor != "python":
        core = native.core()
        if core is not None and not uses_gpu(program):
            executable: Executable = Assembler(program, kernels, core, title=title).assemble()
            return executable
        if core is not None:
            from flambeau_runtime.graph_launch import launcher_of, why_plain

            plain = why_plain(program, options) is not None
            assembler = Assembler(program, kernels, core, arenas=plain, title=title)
            executor = assembler.assemble()
            return launcher_of(program, executor, core, options, on_refusal)
        if options.executor == "c":
            raise RuntimeError(f"the C executor cannot be used: {native.unavailable()}")
    return PythonExecutor(program, kernels, native.below_autograd_keyset(), title)
