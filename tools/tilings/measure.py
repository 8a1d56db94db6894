"""Time the kernels of some cases with each tiling: `python -m tools.tilings.measure LOCK CASE...`,
a line of JSON on stdout for each kernel and tiling.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

import flambeau
from flambeau_inductor.codegen.triton import backend
from flambeau_inductor.codegen.triton.tiling import Tiling, lane_axes, row_axes
from flambeau_inductor.ir import Load, Store
from tools.bench.kernel_cases import KERNEL_CASES
from tools.bench.kernels import call_of
from tools.tilings.row_cases import ROW_CASES
from tools.tilings.scattered_cases import SCATTERED_CASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flambeau_inductor.ir import Axis, LoopKernel

CASES = KERNEL_CASES | SCATTERED_CASES | ROW_CASES

MOST_ELEMENTS = 1 << 14
"""Of a tile: more do not fit into registers."""


def tilings_beside(chosen: Tiling) -> list[Tiling]:
    """The tiling itself and others of the same kind."""
    factors = (0.25, 0.5, 1, 2, 4)
    found = [chosen]
    for by in factors:
        for warps in (1, 2, 4, 8, 16):
            for lanes in factors if chosen.rblock and not chosen.persistent else (1,):
                xblock, rblock = int(chosen.xblock * by), int(chosen.rblock * lanes)
                elements = xblock * max(1, rblock)
                per_thread = elements / (32 * warps)
                if xblock < 1 or elements > MOST_ELEMENTS or not 1 <= per_thread <= 64:
                    continue
                other = replace(chosen, xblock=xblock, rblock=rblock, warps=warps)
                # Which neighbours a thread has matters where no vector reads them.
                turned = [replace(other, dealt=not other.dealt)] if not other.rblock else []
                found += [each for each in (other, *turned) if each not in found]
    return found


@dataclass
class Trial:
    """One compile with the n-th tiling of each kernel; what was chosen, by kernel name."""

    number: int
    tilings: dict[str, Tiling] = field(default_factory=dict)
    chosen: dict[str, Tiling] = field(default_factory=dict)
    kernels: dict[str, LoopKernel] = field(default_factory=dict)
    most: int = 1

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Have the code generator use this trial's tilings."""
        choose, write = backend.choose_tiling, backend.write_kernel
        first: dict[LoopKernel, Tiling] = {}

        def choose_other(kernel: LoopKernel) -> Tiling:
            first[kernel] = choose(kernel)
            others = tilings_beside(first[kernel])
            self.most = max(self.most, len(others))
            return others[self.number] if self.number < len(others) else first[kernel]

        def note(kernel: LoopKernel, name: str, tiling: Tiling, **how: Any) -> str:
            self.tilings[name], self.chosen[name] = tiling, first[kernel]
            self.kernels[name] = kernel
            return write(kernel, name, tiling, **how)

        with (
            mock.patch.object(backend, "choose_tiling", choose_other),
            mock.patch.object(backend, "write_kernel", note),
        ):
            yield


def kernel_times(call: Callable[[], object], runs: int = 5) -> dict[str, float]:
    """Median microseconds on the device of each kernel of a call, with a cold L2 cache."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(runs):
            flush.zero_()
            call()
        torch.cuda.synchronize()
    times = defaultdict(list)
    for event in profile.events():
        times[event.name].append(event.device_time)
    return {name: statistics.median(each) for name, each in times.items()}


def features(kernel: LoopKernel, tiling: Tiling) -> dict[str, Any]:
    """What a model of the time may use."""
    widths = {param.name: param.dtype.itemsize for param in kernel.params}
    reads = [statement for statement in kernel.body if isinstance(statement, Load)]
    writes = [statement for statement in kernel.body if isinstance(statement, Store)]
    return {
        "points": _extent(row_axes(kernel, tiling)),
        "row": _extent(lane_axes(kernel, tiling)),
        "statements": len(kernel.body),
        "read": [widths[statement.buffer] for statement in reads],
        "written": [widths[statement.buffer] for statement in writes],
    }


def _extent(axes: Sequence[Axis]) -> int:
    size = 1
    for axis in axes:
        size *= int(axis.size)
    return size


def measure(case_name: str, lock: Path) -> Iterator[dict[str, Any]]:
    """A row for each kernel of the case and each tiling."""
    case = CASES[case_name]
    torch.manual_seed(0)
    arguments = case.inputs("cuda")
    number, most = 0, 1
    while number < most:
        trial = Trial(number)
        # Of what is stored, no kernel would be written again.
        options = {"cuda_graphs": "never", "graph_cache": False}
        compiled = flambeau.compile(case.function, options=options)
        with torch.set_grad_enabled(case.training):
            call = call_of(case, compiled, arguments)
            with trial.patched():
                call()
            torch.cuda.synchronize()
            with lock.open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                times = kernel_times(call)
        for name, tiling in trial.tilings.items():
            if name in times and (number == 0 or tiling != trial.chosen[name]):
                yield {
                    "case": case_name,
                    "kernel": name,
                    "chosen": tiling == trial.chosen[name],
                    "tiling": dataclasses.asdict(tiling),
                    "us": times[name],
                } | features(trial.kernels[name], tiling)
        number, most = number + 1, max(most, trial.most)


def main() -> None:
    """Measure some cases; one that fails is reported on stderr."""
    for name in sys.argv[2:]:
        try:
            for row in measure(name, Path(sys.argv[1])):
                print(json.dumps(row), flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
