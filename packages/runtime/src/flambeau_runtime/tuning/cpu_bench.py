"""Times Programs on a CPU: a few calls in a row, by the clock, on the same inputs.

Nothing else is launched meanwhile, so candidates take turns (`tuner.MeasuringTuner`), and a call
takes as many threads as the program's calls will.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime._version import __version__
from flambeau_runtime.build import isa
from flambeau_runtime.executor import load
from flambeau_runtime.tuning.contest import CpuFacts
from flambeau_runtime.tuning.inputs import likely_inputs
from flambeau_runtime.tuning.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flambeau_runtime.options import RuntimeOptions
    from flambeau_runtime.program import Program

SAMPLE_SECONDS = 3e-4
"""About how long the calls of one sample take: much less than a time slice of the system's, which a
sample loses if another program takes over a core.
"""

MAX_CALLS = 100


class CpuBench:
    """`tuner.Bench` for CPUs. `threads`: as kernels are compiled for; 0: as many as OpenMP has."""

    noise = 0.03
    sampling = Sampling(60, early_rounds=8, patience=150.0, seconds=2.0, interrupted=True)

    def __init__(self, options: RuntimeOptions, threads: int = 0) -> None:
        self.options = dataclasses.replace(options, debug=False)
        self.threads = threads

    def facts(self, device: str) -> CpuFacts | None:
        """The CPU as cost models see it."""
        level = self.options.isa or isa.detect()
        threads = self.threads or torch.get_num_threads()
        flags = isa.cpu_flags()
        if level == "avx512":
            names = ("avx512_bf16", "amx_bf16", "avx512_vnni", "amx_int8")
            return CpuFacts(threads, 64, 32, 1, 4, *(name in flags for name in names))
        if level == "avx2":
            return CpuFacts(threads, 32, 16, 2, 4, multiplies_int8="avx_vnni" in flags)
        return CpuFacts(threads, 16, 32 if platform.machine() == "aarch64" else 16, 2, 4)

    def identity(self, device: str) -> str:
        """The CPU, its instructions, the threads, torch's and our own version, and the settings
        that choose among torch's libraries.
        """
        flags = " ".join(sorted(isa.cpu_flags()))
        settings = f"{torch._C._get_mkldnn_enabled()} {torch.get_float32_matmul_precision()}"
        versions = f"{self.options.isa} {self.options.cxx} {torch.__version__} {__version__}"
        return f"{model_name()} {flags} {self.facts(device)} {settings} {versions}"

    def build(self, program: Program, *, trusted: bool) -> Callable[..., tuple[Any, ...]]:
        """The Program made callable."""
        del trusted
        return load(program, self.options)

    def inputs(self, program: Program, numbers: Sequence[int]) -> list[Any]:
        """Random tensors as the Program declares its inputs, and the numbers."""
        return likely_inputs(program, numbers)

    @contextmanager
    def timed(
        self, runs: Sequence[Callable[..., tuple[Any, ...]]], inputs: Sequence[Any]
    ) -> Iterator[Callable[[int], float]]:
        """Within, `time(number)` calls one run and returns milliseconds a call."""

        # The time of one thread stands still while another program has its core.
        single = (self.threads or torch.get_num_threads()) == 1
        clock = time.thread_time if single else time.perf_counter

        def seconds(run: Callable[..., Any], calls: int) -> float:
            start = clock()
            for _ in range(calls):
                run(*inputs)
            return (clock() - start) / calls

        calls = []
        for run in runs:
            run(*inputs)
            each = max(min(seconds(run, 1), seconds(run, 1)), 1e-7)
            calls.append(max(1, min(MAX_CALLS, int(SAMPLE_SECONDS / each))))
        yield lambda number: 1e3 * seconds(runs[number], calls[number])


@lru_cache(maxsize=1)
def model_name() -> str:
    """The CPU's name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return platform.machine()
