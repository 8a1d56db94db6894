"""Whole models on a CPU beside eager and torch.compile: ms a call, s of a first call with empty
caches, and peak memory.

`python -m tools.bench.models CASE ROUNDS` measures calls in turn in a fresh process;
`python -m tools.bench.models CASE STACK` a first call and its peak. JSON on stdout.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

import torch

from tools.bench.model_cases import MODEL_CASES
from tools.bench.timing import compile_modules, interleave
from tools.checks.command import ROOT

STACKS = ("eager", "flambeau", "torch")


def compiled(stack: str, program: Any) -> Any:
    """The program as a stack runs it."""
    if stack == "eager":
        return program
    if stack == "torch":
        return torch.compile(program)
    import flambeau

    return flambeau.compile(program)


def steady(case_name: str, rounds: int) -> dict[str, float]:
    """Median seconds a call of each stack, called in turn; the processors' time of all threads if
    these sleep while they wait (`OMP_WAIT_POLICY`).
    """
    passive = os.environ.get("OMP_WAIT_POLICY") == "passive"
    clock = time.process_time if passive else time.perf_counter
    torch.manual_seed(0)
    case = MODEL_CASES[case_name]("cpu")
    with torch.set_grad_enabled(case.training):
        calls = {name: partial(case.call, compiled(name, case.program)) for name in STACKS}
        return interleave(calls, device="cpu", rounds=rounds, target=0.01, clock=clock)


def first(case_name: str, stack: str) -> dict[str, float]:
    """Seconds of the first call, compilers' imports included; MB that it and four more calls add
    to the largest size of this process.
    """
    torch.manual_seed(0)
    case = MODEL_CASES[case_name]("cpu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.set_grad_enabled(case.training):
        started = time.perf_counter()
        program = compiled(stack, case.program)
        case.call(program)
        seconds = time.perf_counter() - started
        for _ in range(4):
            case.call(program)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"first": seconds, "peak": (peak - before) / 1e3}


def fresh(case: str, what: str, folder: str, passive: bool) -> dict[str, float]:
    """One measurement in a fresh process, with its caches in a folder. Modules are compiled to
    bytecode before, as pip does when it installs them.
    """
    compile_modules()
    settings = {"OMP_WAIT_POLICY": "passive"} if passive else {}
    settings |= {
        "FLAMBEAU_CACHE_DIR": os.path.join(folder, "flambeau"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
    }
    command = [sys.executable, "-m", "tools.bench.models", case, what]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def model_table(
    cases: list[str], rounds: int, cold: bool, passive: bool
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; each row is printed when it is known. The caches are empty at first calls,
    and filled by these for the calls in turn. Without `cold` the user's caches serve. `passive`
    measures the processors' time, which work of others on the machine disturbs little.
    """
    rows, ratios = [], []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            used = folder if cold else os.path.expanduser("~/.cache/flambeau-bench")
            columns = ["-"] * 5
            if cold:
                one, two = (fresh(case, stack, used, passive) for stack in ("flambeau", "torch"))
                ratio = f"{one['first'] / two['first']:.3f}"
                times = f"{one['first']:.2f}", f"{two['first']:.2f}", ratio
                columns = [*times, f"{one['peak']:.0f}", f"{two['peak']:.0f}"]
            seconds = fresh(case, str(rounds), used, passive)
        ratios.append(seconds["flambeau"] / seconds["torch"])
        rows.append([
            case, *(f"{seconds[name] * 1e3:.3f}" for name in STACKS),
            f"{seconds['flambeau'] / seconds['eager']:.3f}", f"{ratios[-1]:.3f}", *columns,
        ])  # fmt: skip
        print(*rows[-1], file=sys.stderr, flush=True)
    rows.append(
        ["geometric mean", *[""] * 4, f"{statistics.geometric_mean(ratios):.3f}", *[""] * 5]
    )
    headings = [
        "case", *(f"{name} ms" for name in STACKS), "to eager", "to torch",
        "first s", "torch's", "ratio", "peak MB", "torch's",
    ]  # fmt: skip
    return headings, rows


if __name__ == "__main__":
    case, what = sys.argv[1:]
    print(json.dumps(steady(case, int(what)) if what.isdigit() else first(case, what)))
