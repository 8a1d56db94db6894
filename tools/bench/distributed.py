"""Training steps on several devices, beside eager and torch.compile: ms a step, peak memory, loss.

Each case runs in separate processes, one a device: `python -m tools.bench.distributed CASE
ROUNDS CANDIDATE...`, JSON on stdout.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn

import flambeau
from tools.bench.distributed_cases import DISTRIBUTED_CASES, SMALL, Llama, Sizes
from tools.bench.gpu import in_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CANDIDATES = ("eager", "flambeau", "flambeau-layers", "torch", "torch-layers")
"""Eager; each compiler for the whole model, and for each of its layers."""

STEPS = 3
"""How many steps are timed at a time."""


def step_of(case: str, candidate: str, sizes: Sizes, mesh: Any) -> Callable[[], torch.Tensor]:
    """A training step of a fresh model on this rank, AdamW included; it returns its loss."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if mesh.device_type == "cuda" else torch.float32
    model = Llama(sizes).to(mesh.device_type, dtype)
    stack, _, part = candidate.partition("-")
    compiled: Any = {"flambeau": flambeau.compile, "torch": torch.compile}.get(stack)
    if part == "layers":
        for layer in model.layers:
            layer._compiled_call_impl = compiled(layer._call_impl)
    ranked = DISTRIBUTED_CASES[case](model, mesh)
    call = ranked if compiled is None or part else compiled(ranked)
    groups: dict[type, list[nn.Parameter]] = {}  # the fused step takes no mixture of types
    for parameter in ranked.parameters():
        groups.setdefault(type(parameter.data), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": group} for group in groups.values()], lr=1e-4, fused=True
    )
    # ranks that hold parts of the same products compute the same batch
    torch.manual_seed(1 if case == "tensor_parallel" else 1 + mesh.get_local_rank())
    shape = 2, sizes.rows, sizes.tokens
    words, wanted = torch.randint(0, sizes.words, shape).to(mesh.device_type)

    def step() -> torch.Tensor:
        loss: torch.Tensor = call(words, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def measure(
    rank: int, case: str, candidates: Sequence[str], rounds: int, ranks: Ranks, folder: str
) -> None:
    """What a rank does: compile all candidates, wait, time them in turn. The first one writes
    seconds a step, the loss of each candidate's fifth step, and its peak of allocated MB.
    """
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpus else "gloo", rank=rank, world_size=ranks.count,
        init_method=f"file://{folder}/store", timeout=timedelta(seconds=600),
    )  # fmt: skip
    mesh = dist.device_mesh.init_device_mesh("cuda" if gpus else "cpu", (ranks.count,))
    synchronize = torch.cuda.synchronize if gpus else (lambda: None)
    together = torch.zeros(1)  # of gloo: no GPU works while ranks wait for each other
    steps, losses, peaks = {}, {}, {}
    for name in candidates:
        if gpus:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        steps[name] = step_of(case, name, Sizes() if gpus else SMALL, mesh)
        losses[name] = [float(steps[name]()) for _ in range(5)][-1]
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e6 if gpus else 0.0
        print(case, name, rank, f"{losses[name]:.4f}", file=sys.stderr, flush=True)
    ranks.ready.wait()
    ranks.start.wait()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            synchronize()
            dist.all_reduce(together)
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
            synchronize()
            seconds[name].append((time.perf_counter() - started) / STEPS)
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        result = {"seconds": medians, "losses": losses, "peaks": peaks, "launches": []}
        (Path(folder) / "result").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


class Ranks:
    """How many processes there are; `ready` when all have compiled, and `start`, when they may
    begin to time.
    """

    def __init__(self, context: Any, count: int) -> None:
        self.count = count
        self.ready, self.start = context.Barrier(count + 1), context.Event()


def distributed_table(
    cases: Sequence[str], rounds: int, jobs: int, limit: float
) -> tuple[list[str], list[list[str]]]:
    """Milliseconds a step; ratios of our faster way to torch.compile's and to eager's time; losses
    and peaks.
    """
    rows = []
    module = "tools.bench.distributed"
    for case, result in in_turn(cases, rounds, jobs, limit, module, CANDIDATES):
        seconds, losses, peaks = (result[name] for name in ("seconds", "losses", "peaks"))
        ours, theirs = (
            min(value for name, value in seconds.items() if name.startswith(stack))
            for stack in ("flambeau", "torch")
        )
        rows.append([case, "ms", *(f"{seconds[name] * 1e3:.1f}" for name in CANDIDATES)])
        rows[-1] += [f"{ours / theirs:.3f}", f"{ours / seconds['eager']:.3f}"]
        rows.append(["", "loss", *(f"{losses[name]:.4f}" for name in CANDIDATES), "", ""])
        rows.append(["", "MB", *(f"{peaks[name]:.0f}" for name in CANDIDATES), "", ""])
        for row in rows[-3:]:
            print(*row, file=sys.stderr, flush=True)
    return ["case", "", *CANDIDATES, "to torch", "to eager"], rows


def main(case: str, rounds: int, candidates: Sequence[str]) -> None:
    """Start a process a device (two without GPUs); timing begins when a line comes on stdin."""
    context = multiprocessing.get_context("spawn")
    ranks = Ranks(context, torch.cuda.device_count() or 2)
    with tempfile.TemporaryDirectory() as folder:
        running = multiprocessing.start_processes(
            measure, (case, candidates, rounds, ranks, folder), nprocs=ranks.count, join=False
        )
        assert running is not None
        while ranks.ready.n_waiting < ranks.count:
            running.join(timeout=0.1)  # raises what a rank raises
        ranks.ready.wait()
        print("ready", flush=True)
        sys.stdin.readline()
        ranks.start.set()
        while not running.join():
            pass
        print((Path(folder) / "result").read_text())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
