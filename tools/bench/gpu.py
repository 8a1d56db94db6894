"""Flambeau beside eager and both of torch.compile's modes on a GPU: times and peak memory.

Each case runs in a separate process: `python -m tools.bench.gpu CASE CANDIDATE...`, JSON on
stdout.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from tools.bench.gpu_cases import GPU_CASES
from tools.bench.timing import interleave
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    """
    torch.manual_seed(0)
    case = GPU_CASES[case_name]("cuda")
    torch.cuda.reset_peak_memory_stats()  # from here on: memory that recordings keep counts, too
    with torch.set_grad_enabled(case.training):
        programs = {name: compiled(name, case.program) for name in candidates}
        calls: dict[str, Callable[[], object]] = {
            name: lambda f=f: case.call(f) for name, f in programs.items()
        }
        for call in calls.values():
            for _ in range(8):
                call()
        torch.cuda.synchronize()
        seconds = interleave(calls, device="cuda", rounds=rounds) if rounds else {}
    launches: list[str] = []
    for name, program in programs.items():
        if name.startswith("flambeau"):
            import flambeau

            launches += [
                line for graph in flambeau.explain(program).graphs for line in graph.launches
            ]
    peak = torch.cuda.max_memory_allocated() / 1e6
    return {"seconds": seconds, "peak": peak, "launches": launches}


def in_process(case: str, candidates: Sequence[str], rounds: int) -> dict[str, Any] | None:
    """`measure` in a fresh process; None, with the end of its errors printed, if that failed."""
    command = [sys.executable, "-m", "tools.bench.gpu", case, str(rounds), *candidates]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{case}: {done.stderr[-600:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def fill_caches(cases: Sequence[str], candidates: Sequence[str], jobs: int) -> None:
    """Compile every case once, `jobs` processes at a time, so that the measured processes find
    their kernels on disk. With no jobs, they are there.
    """
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(lambda case: in_process(case, candidates, 0), cases if jobs else ()))


def time_table(cases: Sequence[str], rounds: int) -> tuple[list[str], list[list[str]]]:
    """Milliseconds a call, and the ratio of our default mode to the faster of torch's modes."""
    rows, ratios = [], []
    for case in cases:
        result = in_process(case, CANDIDATES, rounds)
        if result is None:
            continue
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
        print(case, *result["launches"], sep="\n  ", file=sys.stderr)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        rows.append(["geometric mean", *[""] * len(CANDIDATES), f"{mean:.2f}", ""])
    headings = [f"{name} ms" for name in CANDIDATES]
    return ["case", *headings, "to best", "ro to best"], rows


def memory_table(cases: Sequence[str], jobs: int) -> tuple[list[str], list[list[str]]]:
    """The peak of allocated MB of each candidate, alone in its process, `jobs` at a time."""

    def peak(case: str, name: str) -> str:
        result = in_process(case, [name], 1)
        return "-" if result is None else f"{result['peak']:.0f}"

    with ThreadPoolExecutor(jobs) as pool:
        peaks = [[pool.submit(peak, case, name) for name in CANDIDATES] for case in cases]
        rows = [
            [case, *(one.result() for one in row)] for case, row in zip(cases, peaks, strict=True)
        ]
    return ["case", *(f"{name} MB" for name in CANDIDATES)], rows


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[3:], int(sys.argv[2]))))
