"""Measure kernels one by one: how long a launch takes alone, on random inputs, beside a copy of
memory.

launch k(arg0, buf0)   ->   a Program of that launch, whose inputs are its buffers

Integer buffers are zero, as indices that are in bounds. A kernel that was built is not built again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau.program_explanation import explain_program, likely_sizes
from flambeau_runtime.dims import evaluate
from flambeau_runtime.program import Launch, Program
from flambeau_runtime.tuning.cpu_bench import CpuBench
from flambeau_runtime.tuning.cuda_bench import CudaBench

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau.report import Report
    from flambeau_runtime.options import RuntimeOptions
    from flambeau_runtime.program import Dim
    from flambeau_runtime.tuning.tuner import Bench

COPIED_BYTES = 1 << 28
"""So much memory is copied to measure the bandwidth: more than caches hold."""


@dataclass(frozen=True)
class KernelTime:
    """Seconds of one launch; the bytes a second that it touches, and that a copy of memory does."""

    seconds: float
    bandwidth: float
    peak: float


Times: TypeAlias = "dict[tuple[int, int], dict[str, KernelTime]]"
"""By number of graph and Program: kernel -> time."""


def measure_kernels(report: Report, options: RuntimeOptions) -> Times:
    """The time of each kernel of all graphs, of its first launch. A kernel that cannot run alone
    has none.
    """
    benches: dict[str, Bench] = {}
    peaks: dict[str, float] = {}
    result: Times = {}
    for number, graph in enumerate(report.graphs):
        for at, program in enumerate(graph.programs):
            functional = graph.functional.get(at)
            sizes = likely_sizes(program, functional)
            if len(sizes) < len(program.symbols):
                continue
            explained = explain_program(program, functional)
            touched = {kernel.name: kernel.bytes_touched for kernel in explained.kernels}
            times = result.setdefault((number, at), {})
            for step in program.steps:
                if not isinstance(step, Launch) or step.kernel in times or not touched[step.kernel]:
                    continue
                device = _device(program, step)
                if device not in benches:
                    benches[device] = _bench(device, options)
                    peaks[device] = copy_bandwidth(benches[device], device)
                with suppress(NotImplementedError):
                    alone = alone_program(program, step, sizes)
                    seconds = _seconds(benches[device], alone)
                    bandwidth = touched[step.kernel] / seconds
                    times[step.kernel] = KernelTime(seconds, bandwidth, peaks[device])
    return result


def alone_program(program: Program, launch: Launch, sizes: Mapping[str, int]) -> Program:
    """A Program of one launch, at these sizes. NotImplementedError for a launch that is passed
    random state.
    """
    names = list(dict.fromkeys(launch.buffers))
    tensors = {tensor.name: tensor for tensor in program.tensors}
    (kernel,) = (kernel for kernel in program.kernels if kernel.name == launch.kernel)
    values = dict(sizes)

    def numbers(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        try:
            return tuple(evaluate(dim, values) for dim in dims)
        except KeyError as error:
            raise NotImplementedError(f"{launch.kernel} is passed {error}") from error

    return Program(
        inputs=tuple(names),
        tensors=tuple(
            replace(
                tensors[name],
                shape=numbers(tensors[name].shape),
                stride=numbers(tensors[name].stride),
                offset=0,
            )
            for name in names
        ),
        symbols=(),
        sources=(program.sources[kernel.source],),
        kernels=(replace(kernel, source=0),),
        steps=(replace(launch, ints=numbers(launch.ints), grid=numbers(launch.grid)),),
        outputs=(),
        name=launch.kernel,
    )


def copy_bandwidth(bench: Bench, device: str) -> float:
    """The bytes a second that a copy reads and writes."""
    source = torch.ones(COPIED_BYTES // 8, dtype=torch.float32, device=device)
    target = torch.empty_like(source)

    def copy(source: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        target.copy_(source)
        return ()

    with bench.timed([copy], [source, target]) as time_of:
        return 2 * source.nbytes / (time_of(0) / 1e3)


def _seconds(bench: Bench, program: Program) -> float:
    run, inputs = bench.build(program, trusted=True), bench.inputs(program, ())
    for tensor in inputs:
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            tensor.zero_()
    with bench.timed([run], inputs) as time_of:
        return max(time_of(0) / 1e3, 1e-9)


def _bench(device: str, options: RuntimeOptions) -> Bench:
    plain = replace(options, cuda_graphs="never")
    return CpuBench(plain) if device == "cpu" else CudaBench(plain)


def _device(program: Program, launch: Launch) -> str:
    return next(tensor.device for tensor in program.tensors if tensor.name == launch.buffers[0])
