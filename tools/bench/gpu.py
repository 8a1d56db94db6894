"""Flambeau beside eager and both of torch.compile's modes on a GPU: times and peak memory.

Each case runs in a separate process: `python -m tools.bench.gpu CASE CANDIDATE...`, JSON on
stdout.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tools.bench.gpu_cases import GPU_CASES
from tools.bench.timing import interleave
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CANDIDATES = ("eager", "flambeau", "flambeau-ro", "torch", "torch-ro")
"""Eager, and each compiler in its default mode and in mode="reduce-overhead"."""


def compiled(candidate: str, program: Any) -> Any:
    """The program as a candidate runs it."""
    if candidate == "eager":
        return program
    mode = "reduce-overhead" if candidate.endswith("-ro") else None
    if candidate.startswith("torch"):
        return torch.compile(program, mode=mode)
    import flambeau

    return flambeau.compile(program, mode=mode)


def measure(case_name: str, candidates: Sequence[str], rounds: int) -> dict[str, Any]:
    """Seconds a call of each candidate, called in turn; the peak of allocated MB from the first
    call on; how Flambeau launches.

    Everything is compiled first; the timing begins when a line comes on stdin, which the line
    "ready" on stdout asks for.
    """
    torch.manual_seed(0)
    case = GPU_CASES[case_name]("cuda")
    torch.cuda.reset_peak_memory_stats()  # from here on: memory that recordings keep counts, too
    with torch.set_grad_enabled(case.training):
        programs = {name: compiled(name, case.program) for name in candidates}
        calls: dict[str, Callable[[], object]] = {
            name: partial(case.call, program) for name, program in programs.items()
        }
        for call in calls.values():
            for _ in range(8):
                call()
        torch.cuda.synchronize()
        print("ready", flush=True)
        sys.stdin.readline()
        seconds = interleave(calls, device="cuda", rounds=rounds)
    launches: list[str] = []
    for name, program in programs.items():
        if name.startswith("flambeau"):
            import flambeau

            launches += [
                line for graph in flambeau.explain(program).graphs for line in graph.launches
            ]
    peak = torch.cuda.max_memory_allocated() / 1e6
    return {"seconds": seconds, "peak": peak, "launches": launches}


class Measurement:
    """`measure` of a module in a fresh process, which waits when everything is compiled. It is
    killed if that takes longer than `limit` seconds.
    """

    def __init__(
        self,
        case: str,
        candidates: Sequence[str],
        rounds: int,
        limit: float,
        module: str = "tools.bench.gpu",
    ) -> None:
        command = [sys.executable, "-m", module, case, str(rounds), *candidates]
        self.case = case
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.timer = threading.Timer(limit, self.process.kill)
        self.timer.start()

    def prepare(self) -> None:
        """Wait until everything is compiled."""
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and line != "ready\n":
            self.lines.append(line)
        self.timer.cancel()

    def result(self) -> dict[str, Any] | None:
        """Let it measure; None, with the end of its output printed, if the process failed."""
        output, _ = self.process.communicate("\n")
        if self.process.returncode == 0:
            (last,) = [line for line in output.splitlines() if line.startswith('{"seconds"')]
            result: dict[str, Any] = json.loads(last)
            return result
        print(f"{self.case}: {''.join([*self.lines, output])[-600:]}", file=sys.stderr, flush=True)
        return None


def in_turn(
    cases: Sequence[str],
    rounds: int,
    jobs: int,
    limit: float,
    module: str = "tools.bench.gpu",
    candidates: Sequence[str] = CANDIDATES,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case's `measure` by the module: `jobs` of them are compiled at a time, and then timed
    one by one.
    """
    for start in range(0, len(cases), max(1, jobs)):
        batch = [
            Measurement(case, candidates, rounds, limit, module)
            for case in cases[start : start + max(1, jobs)]
        ]
        for each in batch:
            each.prepare()
        for each in batch:
            result = each.result()
            if result is not None:
                yield each.case, result


def time_table(
    cases: Sequence[str], rounds: int, jobs: int, limit: float
) -> tuple[list[str], list[list[str]]]:
    """Milliseconds a call, and the ratio of our default mode to the faster of torch's modes."""
    rows, ratios = [], []
    for case, result in in_turn(cases, rounds, jobs, limit):
        seconds = result["seconds"]
        best = min(seconds["torch"], seconds["torch-ro"])
        ratios.append(seconds["flambeau"] / best)
        rows.append(
            [
                case,
                *(f"{seconds[name] * 1e3:.4f}" for name in CANDIDATES),
                f"{ratios[-1]:.2f}",
                f"{seconds['flambeau-ro'] / best:.2f}",
            ]
        )
        print(" ".join(rows[-1]), *result["launches"], sep="\n  ", file=sys.stderr, flush=True)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        rows.append(["geometric mean", *[""] * len(CANDIDATES), f"{mean:.2f}", ""])
    headings = [f"{name} ms" for name in CANDIDATES]
    return ["case", *headings, "to best", "ro to best"], rows


def memory_table(
    cases: Sequence[str], jobs: int, limit: float
) -> tuple[list[str], list[list[str]]]:
    """The peak of allocated MB of each candidate, alone in its process, `jobs` at a time."""

    def peak(case: str, name: str) -> str:
        measurement = Measurement(case, [name], 1, limit)
        measurement.prepare()
        result = measurement.result()
        return "-" if result is None else f"{result['peak']:.0f}"

    with ThreadPoolExecutor(jobs) as pool:
        peaks = [[pool.submit(peak, case, name) for name in CANDIDATES] for case in cases]
        rows = []
        for case, row in zip(cases, peaks, strict=True):
            rows.append([case, *(one.result() for one in row)])
            print(*rows[-1], file=sys.stderr, flush=True)
    return ["case", *(f"{name} MB" for name in CANDIDATES)], rows


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[3:], int(sys.argv[2]))))
