"""Times Programs on a GPU: CUDA graphs of several calls over rotating inputs, between events.

A graph has no launch overhead between its kernels, so short kernels are timed as they are. The
calls of a graph take one copy of the inputs after another, and there are as many copies as make up
more than the L2 cache: a call finds it as a program's kernel would, filled by others.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime._version import __version__
from flambeau_runtime.build.assemblers import assemblers
from flambeau_runtime.cuda import capability
from flambeau_runtime.executor import load
from flambeau_runtime.tuning.contest import DeviceFacts
from flambeau_runtime.tuning.inputs import copied_memory, likely_inputs
from flambeau_runtime.tuning.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flambeau_runtime.options import RuntimeOptions
    from flambeau_runtime.program import Program

MAX_COPIES = 32
"""Copies of a Program's inputs at the most."""

SAMPLE_MILLISECONDS = 1.0
"""About how long the calls of one graph take."""

MAX_CALLS = 128

DRIVER_FILE = Path("/proc/driver/nvidia/version")


class CudaBench:
    """`tuner.Bench` for CUDA devices."""

    noise = 0.01
    sampling = Sampling()

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = dataclasses.replace(options, cuda_graphs="never", debug=False)

    def facts(self, device: str) -> DeviceFacts | None:
        """The device, or None while a CUDA graph is being captured: nothing may be timed then."""
        if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
            return None
        return cuda_facts(device)

    def identity(self, device: str) -> str:
        """The device's name; the versions of the driver, torch, Triton and this package; the
        assemblers.
        """
        known = torch.cuda.get_device_properties(device)
        versions = f"{driver()} {torch.__version__} {version('triton')} {__version__}"
        return f"{known.name} {known.multi_processor_count} {versions} {assemblers()}"

    def build(self, program: Program, *, trusted: bool) -> Callable[..., tuple[Any, ...]]:
        """The Program, launched kernel by kernel. Raises ValueError for kernels that spill, unless
        it is trusted.
        """
        if not trusted:
            refusing = {"in_registers": True}
            kernels = [dataclasses.replace(k, meta=k.meta | refusing) for k in program.kernels]
            program = dataclasses.replace(program, kernels=tuple(kernels))
        return load(program, self.options)

    def inputs(self, program: Program, numbers: Sequence[int]) -> list[Any]:
        """Random tensors as the Program declares its inputs, and the numbers."""
        return likely_inputs(program, numbers)

    @contextmanager
    def timed(
        self, runs: Sequence[Callable[..., tuple[Any, ...]]], inputs: Sequence[Any]
    ) -> Iterator[Callable[[int], float]]:
        """Within, `time(number)` replays the graph of one run and returns milliseconds a call."""
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        devices = [tensor.device for tensor in tensors]
        # A program may have no tensors to read.
        with torch.cuda.device(devices[0] if devices else None):
            cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            nbytes = sum(tensor.nbytes for tensor in tensors) or 1
            count = max(2, min(MAX_COPIES, -(-2 * cache // nbytes)))
            copies = [list(inputs), *(copied(inputs) for _ in range(count - 1))]
            calls = max(count, number_of_calls(runs[0], inputs))
            graphs = [capture(run, copies, calls) for run in runs]

            def time_of(number: int) -> float:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graphs[number].replay()
                end.record()
                end.synchronize()
                return start.elapsed_time(end) / calls

            for number in range(len(graphs)):
                time_of(number)
            yield time_of
            torch.cuda.synchronize()


def cuda_facts(device: str) -> DeviceFacts | None:
    """A GPU as cost models see it; None of another device."""
    if not device.startswith("cuda"):
        return None
    known = torch.cuda.get_device_properties(device)
    shared = getattr(known, "shared_memory_per_block_optin", 99 * 1024)
    return DeviceFacts(known.multi_processor_count, shared, capability(torch.device(device)))


def copied(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with copies of the tensors, as they lie in memory: kernels go by their strides."""
    return [copied_memory(each) if isinstance(each, torch.Tensor) else each for each in inputs]


def driver() -> str:
    """The version of the GPU's driver."""
    with contextlib.suppress(OSError):
        return DRIVER_FILE.read_text().partition("\n")[0]
    number = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return str(number.value)


def number_of_calls(run: Callable[..., Any], inputs: Sequence[Any]) -> int:
    """How many calls fill a sample."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run(*inputs)
    start.record()
    for _ in range(3):
        run(*inputs)
    end.record()
    end.synchronize()
    each = max(start.elapsed_time(end) / 3, 1e-3)
    return max(1, min(MAX_CALLS, int(SAMPLE_MILLISECONDS / each)))


def capture(
    run: Callable[..., Any], copies: Sequence[Sequence[Any]], calls: int
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of so many calls, each on the next copy of the inputs."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(*copies[0])  # what a first call on a stream sets up is not captured
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for number in range(calls):
            run(*copies[number % len(copies)])
    return graph
