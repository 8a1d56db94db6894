"""Compare random programs that communicate with eager, in two processes.

Each program runs in eager mode, compiled, and compiled in one process beside eager in the other: a
collective that is dropped, added or moved past another would leave that one waiting, or give it
what belongs elsewhere.
"""

from __future__ import annotations

import linecache
import os
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import flambeau
from tests.ranks import leave_groups, run_ranks
from tools.fuzz.collective_programs import program_of

Call: TypeAlias = Callable[..., Any]
LIMIT = timedelta(seconds=60)
ROWS = 8


def waited(tensor: Any) -> torch.Tensor:
    """A tensor once it has arrived: eager hands out others."""
    if isinstance(tensor, functional.AsyncCollectiveTensor):
        tensor = tensor.trigger_wait()
    return tensor


def differing(first: int, count: int, *, dynamic: bool | None = None) -> list[str]:
    """How the programs of these seeds differ from eager, with their texts."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_compare, (folder, first, count, dynamic), 2)
        return [file.read_text() for file in sorted(Path(folder).glob("seed*"))]


def _compare(rank: int, folder: str, first: int, count: int, dynamic: bool | None) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=store, timeout=LIMIT)
    pair = dist.new_group([0, 1])
    own = [dist.new_group([each]) for each in range(2)][rank]
    groups = dist.group.WORLD, pair, own
    for seed in range(first, first + count):
        text, trains = program_of(seed)
        difference = _difference(rank, seed, text, trains, groups, dynamic)
        if difference is not None:
            file = Path(folder) / f"seed {seed} rank {rank}"
            file.write_text(f"seed {seed}, rank {rank}, {difference}\n{text}")
        if _anywhere(difference is not None):
            break
    leave_groups()


def _difference(
    rank: int, seed: int, text: str, trains: bool, groups: Any, dynamic: bool | None
) -> str | None:
    program = _made(seed, text)
    compiled = flambeau.compile(program, dynamic=dynamic)
    rounds = "bfloat16" in text
    found = None
    for rows in (ROWS,) if dynamic is False else (ROWS, 2 * ROWS, 3 * ROWS, 0):
        arguments = seed, rows, rank, trains, groups
        try:
            theirs = _run(program, *arguments)
        except RuntimeError:
            return None  # both processes
        for name, call in (
            ("compiled", compiled),
            ("one process compiled", compiled if rank == seed % 2 else program),
        ):
            difference = _of_results(_run(call, *arguments), theirs, rounds)
            if difference is not None:
                found = f"{rows} rows, {name}: {difference}"
        if _anywhere(found is not None):
            return found
    return None


def _anywhere(holds: bool) -> bool:
    flag = torch.tensor(float(holds))
    dist.all_reduce(flag)
    return bool(flag)


def _made(seed: int, text: str) -> Call:
    name = f"<collectives {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    names: dict[str, Any] = {"waited": waited}
    exec(compile(text, name, "exec"), names)
    program: Call = names["program"]
    return program


def _run(call: Call, seed: int, rows: int, rank: int, trains: bool, groups: Any) -> list[Any]:
    """Results, arguments afterwards, and gradients."""
    torch.manual_seed(1000 * seed + 10 * rows + rank)
    x, y = torch.randn(rows, 4), torch.randn(3 + 5 * rank + rows // 8, 4)
    w, k = torch.randn(4, 4) * 0.5, torch.randint(-3, 4, (rows, 4))
    leaves = [x, w, y]
    for leaf in leaves:
        leaf.requires_grad_(trains)
    results = [waited(result) for result in call(x, w, k, y, *groups)]
    shown: list[Any] = [*(result.detach() for result in results), x.detach(), k]
    tracked = [result.double().sin().sum() for result in results if result.requires_grad]
    if tracked:
        shown += torch.autograd.grad(torch.stack(tracked).sum(), leaves, allow_unused=True)
    return shown


def _of_results(ours: list[Any], theirs: list[Any], rounds: bool) -> str | None:
    """`rounds`: the program rounds to half precision, which compiled code may do elsewhere."""
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        if own is None or other is None:
            if own is not other:
                return f"result {number}: {own} is not {other}"
            continue
        if (own.dtype, own.shape) != (other.dtype, other.shape):
            return f"result {number}: {own.dtype} {own.shape}, not {other.dtype} {other.shape}"
        if own.numel() and own.stride() != other.stride():
            return f"result {number}: strides {own.stride()}, not {other.stride()}"
        if rounds and own.is_floating_point():
            continue
        try:
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-3, equal_nan=True)
        except AssertionError as error:
            return f"result {number}: {error}"
    return None


def report(programs: int, seed: int, dynamic: bool | None) -> int:
    """Print what differs; 1 if anything does."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    texts = differing(seed, programs, dynamic=dynamic)
    for text in texts:
        print(text, flush=True)
    print(f"{programs} programs, {'some' if texts else 'none'} differ")
    return 1 if texts else 0
