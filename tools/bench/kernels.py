"""Single kernels: time beside eager and torch.compile, in turn with a plain copy of as many bytes
as the kernel moves at least, between two given tensors.

On a GPU it is the device's time: each run of a candidate follows a write that clears the L2 cache,
which also hides the host's time of the launch. What that write leaves in the cache goes to memory
during the run, the copy's, too. On a CPU it is the time of a call. `python -m tools.bench.kernels
DEVICE ROUNDS CASE...` times some cases in this process, JSON on stdout, a line a case.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from tools.bench.cpu_kernel_cases import CPU_KERNEL_CASES
from tools.bench.kernel_cases import KERNEL_CASES
from tools.bench.timing import interleave
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.bench.kernel_cases import KernelCase

CANDIDATES = ("eager", "flambeau", "torch")
CASES = {"cuda": KERNEL_CASES, "cpu": CPU_KERNEL_CASES}


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [one for item in value for one in tensors(item)] if isinstance(value, list | tuple) else []
    )


def least_bytes(case: KernelCase, arguments: Sequence[Any]) -> int:
    """The bytes that a call must move: inputs read, results and gradients written."""
    if case.bytes is not None:
        return case.bytes
    read = tensors(list(arguments))
    with torch.no_grad():
        written = tensors(case.function(*arguments))
    total = sum(one.numel() * one.element_size() for one in (*read, *written))
    if case.training:  # the gradient of each result is read, that of each input is written
        total += sum(
            one.numel() * one.element_size() for one in (*read, *written) if one.is_floating_point()
        )
    return total


def call_of(case: KernelCase, function: Any, arguments: Sequence[Any]) -> Callable[[], object]:
    """One run of a candidate."""
    if not case.training:
        return lambda: function(*arguments)
    leaves = [
        one.detach().requires_grad_() if torch.is_floating_point(one) else one for one in arguments
    ]
    inputs = [one for one in leaves if one.requires_grad]
    with torch.no_grad():
        tangent = torch.randn_like(case.function(*arguments))
    return lambda: torch.autograd.grad(function(*leaves), inputs, tangent)


def device_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds on the device of each candidate, with a cold L2 cache, in turn."""
    flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    pairs: dict[str, list[Any]] = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(6):
            call()
        pairs[name] = []
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            flush.zero_()
            start.record()
            call()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) for start, end in each) * 1e-3
        for name, each in pairs.items()
    }


def warm(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Compile only."""
    for call in calls.values():
        call()
    return {}


def copy_of(size: int, device: str) -> Callable[[], object]:
    """A copy that reads half of so many bytes and writes the other half."""
    source = torch.randint(0, 256, (max(1, size // 2),), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure(name: str, rounds: int, device: str) -> dict[str, Any]:
    """Seconds of each candidate and the bytes that a call moves at least."""
    import flambeau

    case = CASES[device][name]
    torch._dynamo.reset()  # cases of one function count as recompilations of it, up to a limit
    torch.manual_seed(0)
    arguments = case.inputs(device)
    size = least_bytes(case, arguments)
    with torch.set_grad_enabled(case.training):
        functions = {
            "eager": case.function,
            "flambeau": flambeau.compile(case.function),
            "torch": torch.compile(case.function),
        }
        calls = {key: call_of(case, each, arguments) for key, each in functions.items()}
        turns = calls | {"copy": copy_of(size, device)}
        if not rounds:
            seconds = warm(calls)
        elif device == "cpu":
            seconds = interleave(turns, device="cpu", rounds=rounds, target=0.01)
        else:
            seconds = device_seconds(turns, rounds)
    return {"case": name, "seconds": seconds}


def in_process(cases: Sequence[str], rounds: int, device: str) -> list[dict[str, Any]]:
    """`measure` of some cases in one fresh process; those that fail are printed and left out."""
    command = [sys.executable, "-m", "tools.bench.kernels", device, str(rounds), *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0 or '"error"' in done.stdout:
        print(done.stderr[-400:], file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def fill_caches(cases: Sequence[str], jobs: int, device: str) -> None:
    """Compile every case once, in `jobs` processes."""
    parts = [cases[start::jobs] for start in range(jobs)]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(lambda part: in_process(part, 0, device), filter(None, parts)))


def kernel_table(
    cases: Sequence[str], rounds: int, jobs: int, device: str = "cuda"
) -> tuple[list[str], list[list[str]]]:
    """Compile everything in `jobs` processes (0: it is compiled); then time it all in one."""
    fill_caches(cases, jobs, device)
    rows, ratios = [], []
    for result in in_process(cases, rounds, device):
        seconds = result.get("seconds")
        if not seconds:
            rows.append([result["case"], result.get("error", "")[:60], *[""] * 5])
            continue
        ratios.append(seconds["flambeau"] / seconds["torch"])
        rows.append(
            [
                result["case"],
                *(f"{seconds[name] * 1e6:.1f}" for name in CANDIDATES),
                f"{ratios[-1]:.2f}",
                f"{seconds['copy'] / seconds['flambeau']:.2f}",
                f"{seconds['copy'] / seconds['torch']:.2f}",
            ]
        )
    if ratios:
        mean = statistics.geometric_mean(ratios)
        rows.append(["geometric mean", "", "", "", f"{mean:.2f}", "", ""])
    headings = ["case", *(f"{name} us" for name in CANDIDATES)]
    return [*headings, "to torch", "of copy", "torch of copy"], rows


def main() -> None:
    """Time some cases in this process."""
    device, rounds, *cases = sys.argv[1:]
    for name in cases:
        try:
            result = measure(name, int(rounds), device)
        except Exception as error:
            result = {"case": name, "error": f"{type(error).__name__}: {error}"}
        torch.cuda.empty_cache()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
