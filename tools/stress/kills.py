"""Processes that compile into one cache directory and are killed at random moments."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import flambeau
from flambeau_runtime.cache_contents import entries_of, problem_of
from tools.stress.programs import is_right, program

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

MEAN_LIFE = 1.5
"""Seconds between two kills, on average."""

FORK = multiprocessing.get_context("fork")  # which spares each process the imports


@dataclass(frozen=True)
class Kills:
    """What came of it; `entries` are those that the cache holds at the end."""

    kills: int
    right: int
    wrong: int
    crashes: tuple[int, ...]
    entries: int
    damaged: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not (self.wrong or self.crashes or self.damaged) and self.right > 0


def run_kills(folder: Path, kills: int, processes: int, programs: int, seed: int) -> Kills:
    """Kill so many processes, of which so many run at a time; then have one use the cache."""
    started = time.monotonic()
    cache = folder / "cache"
    os.environ |= {
        "FLAMBEAU_CACHE_DIR": str(cache),
        "FLAMBEAU_GRAPH_CACHE": "1",
        "FLAMBEAU_CHECK": "0",
    }
    drawn = random.Random(seed)
    names = iter(range(kills + processes + 1))

    def start(last: bool = False) -> ForkProcess:
        log = folder / f"{next(names)}.log"
        order = list(range(programs))
        drawn.shuffle(order)
        process = FORK.Process(target=_work, args=(log, order, last))
        process.start()
        return process

    running = [start() for _ in range(processes)]
    crashes: list[int] = []
    killed = 0
    while killed < kills:
        time.sleep(drawn.expovariate(1 / MEAN_LIFE))
        place = drawn.randrange(processes)
        victim = running[place]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        killed += 1
        running[place] = start()
        crashes += [code for code in (victim.exitcode,) if code != -signal.SIGKILL]
    for process in running:
        process.kill()
        process.join()
    last = start(last=True)
    last.join()
    crashes += [code for code in (last.exitcode,) if code]
    words = [line for log in sorted(folder.glob("*.log")) for line in log.read_text().split()]
    entries = entries_of(cache)
    problems = tuple(
        f"{entry.kind}/{entry.key} {text}"
        for entry in entries
        if (text := problem_of(cache, entry))
    )
    return Kills(
        killed, words.count("right"), words.count("wrong"), tuple(crashes), len(entries), problems,
        round(time.monotonic() - started, 1),
    )  # fmt: skip


def _work(log: Path, order: list[int], last: bool) -> None:
    """Compile the programs in this order, for ever, or once."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(os.getpid())
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        for number in order:
            compiled = flambeau.compile(program(number), fullgraph=True, dynamic=False)
            right = is_right(compiled, number, 5, generator)
            os.write(descriptor, b"right\n" if right else b"wrong\n")
        if last:
            return
        flambeau.reset()
