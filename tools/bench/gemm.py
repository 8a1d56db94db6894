"""Products with their epilogues on a GPU: both modes of Flambeau and of torch.compile, and eager,
which calls cuBLAS and then a kernel an operation.

`python -m tools.bench.gemm ROUNDS CANDIDATE,... CASE...` times cases in this process, a line of
JSON on stdout for each; with 0 rounds it only compiles. Times are of the device, with a cold L2
cache, the candidates in turn. The ratio that counts is that of Flambeau's max-autotune to the
faster of eager and torch's max-autotune.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tools.bench.gemm_cases import GEMM_CASES, OTHER_CASES
from tools.bench.kernels import device_seconds
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CANDIDATES = ("eager", "flambeau", "flambeau-ma", "torch", "torch-ma")
TUNED = "max-autotune-no-cudagraphs"

BOUND = 1.02
"""No ratio should be above."""

TOLERANCE = 2e-2
"""The norm of a difference to eager's result, relative to its norm."""

CASE_SECONDS = 150.0
"""A case that takes longer is given up: its process ends, and the others go on in a fresh one."""

FILL_SHARE = 0.6
"""The share of the time for all that compiling may take before anything is timed."""

CACHES = {"FLAMBEAU_CACHE_DIR": "flambeau", "TORCHINDUCTOR_CACHE_DIR": "inductor"}


# In a process of their own


def compiled(candidate: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a candidate runs it."""
    if candidate == "eager":
        return function
    mode = TUNED if candidate.endswith("-ma") else None
    if candidate.startswith("torch"):
        return torch.compile(function, mode=mode)
    import flambeau

    return flambeau.compile(function, mode=mode)


def measure(name: str, candidates: Sequence[str], rounds: int) -> dict[str, Any]:
    """Seconds of each candidate and of its first call; what Flambeau chose; who is wrong."""
    case = (GEMM_CASES | OTHER_CASES)[name]
    torch.manual_seed(0)
    arguments = case.inputs("cuda")
    expected = case.function(*arguments).float()
    calls: dict[str, Callable[[], object]] = {}
    first, tables, errors = {}, "", {}
    for candidate in candidates:
        function = compiled(candidate, case.function)
        started, words = time.perf_counter(), io.StringIO()
        try:
            with contextlib.redirect_stderr(words):
                result = function(*arguments)
                torch.cuda.synchronize()
        except Exception as error:
            errors[candidate] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        first[candidate] = time.perf_counter() - started
        if candidate == "flambeau-ma":
            tables = words.getvalue()
        difference = float((result.float() - expected).norm() / expected.norm())
        if not difference <= TOLERANCE:
            errors[candidate] = f"differs from eager by {difference:.1e}"
            continue
        calls[candidate] = lambda f=function: f(*arguments)
    seconds = device_seconds(calls, rounds) if rounds else {}
    return {"case": name, "seconds": seconds, "first": first, "tables": tables, "errors": errors}


def main() -> None:
    """Measure some cases in this process."""
    rounds, candidates, names = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    if not rounds and any(each.startswith("torch") for each in candidates):
        # Kernels are kept, choices are not: they were measured beside other processes.
        import torch._inductor.config as inductor

        inductor.autotune_local_cache = inductor.fx_graph_cache = False
    for name in names:
        try:
            with torch.no_grad():
                result = measure(name, candidates, rounds)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:200]}"
            result = {"case": name, "seconds": {}, "errors": {"all": text}}
        torch.compiler.reset()
        torch.cuda.empty_cache()
        print(json.dumps(result), flush=True)


# In the process that prints


def run_cases(
    names: Sequence[str], candidates: Sequence[str], rounds: int, deadline: float
) -> Iterator[dict[str, Any]]:
    """The result of each case, as they come. A case that crashes its process, or takes too long,
    has an error for a result.
    """
    pending = list(names)
    while pending and time.monotonic() < deadline:
        command = [sys.executable, "-m", "tools.bench.gemm", str(rounds), ",".join(candidates)]
        with (
            tempfile.TemporaryFile("w+") as words,
            subprocess.Popen(
                [*command, *pending], cwd=ROOT, stdout=subprocess.PIPE, stderr=words
            ) as process,
        ):
            for line in lines_of(process, deadline):
                if line.startswith("{"):
                    result = json.loads(line)
                    pending.remove(result["case"])
                    yield result
                if not pending:  # processes that it started may hold the pipe open
                    break
            process.kill()
            process.wait()
            words.seek(0)
            reason = words.read()[-300:]
        if pending:
            name = pending.pop(0)
            text = "no time is left" if time.monotonic() >= deadline else f"gave up: {reason}"
            yield {"case": name, "seconds": {}, "errors": {"all": text}}


def lines_of(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """The lines that a process prints, until it ends or is silent for too long."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := min(CASE_SECONDS, deadline - time.monotonic())) > 0:
            if not selector.select(left):
                return
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode() for line in lines)


def fill_caches(
    names: Sequence[str], candidates: Sequence[str], jobs: int, deadline: float
) -> None:
    """Compile every case in `jobs` processes; then forget what they chose."""
    candidates = [each for each in candidates if each != "eager"]

    def fill(part: Sequence[str]) -> None:
        for result in run_cases(part, candidates, 0, deadline):
            for who, error in result["errors"].items():
                print(f"compiling {result['case']}: {who}: {error}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(fill, [part for start in range(jobs) if (part := names[start::jobs])]))
    for entry in Path(os.environ["FLAMBEAU_CACHE_DIR"]).glob("entries/tuning/*.json"):
        entry.unlink()


def ratio(seconds: dict[str, float]) -> float | None:
    """Of our max-autotune to the faster of eager and torch's; None if one was not timed."""
    others = [seconds[name] for name in ("eager", "torch-ma") if name in seconds]
    ours = seconds.get("flambeau-ma")
    return None if ours is None or not others else ours / min(others)


def choice(tables: str) -> str:
    """What was chosen for each product."""
    lines = tables.splitlines()
    chosen = [
        lines[number + 1].split(" ms")[0].rpartition(" ")[0].strip()
        for number, line in enumerate(lines[:-1])
        if line.startswith("AUTOTUNE ") and "x" in line
    ]
    return "; ".join(chosen)


def row_of(result: dict[str, Any], candidates: Sequence[str]) -> list[str]:
    """A case as a line of the table."""
    seconds = result["seconds"]
    times = [f"{seconds[name] * 1e6:.1f}" if name in seconds else "-" for name in candidates]
    own = ratio(seconds)
    errors = [f"{who}: {text}" for who, text in result["errors"].items()]
    return [
        result["case"],
        *times,
        "-" if own is None else f"{own:.3f}",
        "; ".join([choice(result.get("tables", "")), *errors]).strip("; ")[:90],
    ]


def gemm_table(
    names: Sequence[str], candidates: Sequence[str], rounds: int, jobs: int, seconds: float
) -> tuple[list[str], list[list[str]]]:
    """Compile everything in `jobs` processes (0: it is compiled), then time case after case; each
    is printed as it comes. Caches are where the environment says, else in a fresh folder.
    """
    deadline = time.monotonic() + seconds
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        for variable, name in CACHES.items():
            os.environ.setdefault(variable, os.path.join(folder, name))
        if jobs:
            fill_caches(names, candidates, jobs, time.monotonic() + FILL_SHARE * seconds)
        # All kinds of sizes come early: time may run out.
        mixed = [name for start in range(3) for name in names[start::3]]
        for result in run_cases(mixed, candidates, rounds, deadline):
            rows.append(row_of(result, candidates))
            print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
            own = ratio(result["seconds"])
            if result["case"] in GEMM_CASES and own is not None:
                ratios.append(own)
    if ratios:
        mean, above = statistics.geometric_mean(ratios), sum(each > BOUND for each in ratios)
        note = f"{len(ratios)} cases, {above} above {BOUND}, largest {max(ratios):.3f}"
        rows.append(["geometric mean", *[""] * len(candidates), f"{mean:.3f}", note])
    return ["case", *(f"{name} us" for name in candidates), "ma to best", "chosen"], rows


if __name__ == "__main__":
    main()
