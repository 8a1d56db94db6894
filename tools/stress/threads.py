"""Threads that compile programs and call programs that they share."""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import flambeau
from tools.stress.programs import is_right, program

if TYPE_CHECKING:
    from collections.abc import Callable

STANDSTILL = 300.0
"""Seconds without a step of a thread after which it counts as deadlocked."""


@dataclass
class Threads:
    """What came of it; `still` are the threads that stood still."""

    threads: int
    right: int = 0
    wrong: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    still: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not (self.wrong or self.errors or self.still) and self.right > 0


def run_threads(
    folder: Path, threads: int, seconds: float, steps: int | None, programs: int, seed: int
) -> Threads:
    """So many threads for so many seconds, or steps of each. A step compiles a program again, or
    calls one that all threads share, with another number of rows.
    """
    os.environ |= {
        "FLAMBEAU_CACHE_DIR": str(folder / "cache"),
        "FLAMBEAU_GRAPH_CACHE": "1",
        "FLAMBEAU_CHECK": "0",
    }
    started = time.monotonic()
    outcome = Threads(threads)
    lock = threading.Lock()
    shared = [flambeau.compile(program(number)) for number in range(programs)]
    latest = [started] * threads

    def work(place: int) -> None:
        drawn = random.Random(f"{seed} {place}")
        generator = torch.Generator().manual_seed(place)
        done = 0
        while time.monotonic() - started < seconds and done != steps:
            number = drawn.randrange(programs)
            compiled: Callable[[torch.Tensor], torch.Tensor] = shared[number]
            if drawn.random() < 0.25:
                compiled = flambeau.compile(program(number), fullgraph=True)
            try:
                right = is_right(compiled, number, drawn.choice((3, 5, 8, 11)), generator)
            except Exception:
                with lock:
                    outcome.errors.append(traceback.format_exc())
                return
            with lock:
                outcome.right += right
                outcome.wrong += [] if right else [number]
            done += 1
            latest[place] = time.monotonic()
        latest[place] = float("inf")

    running = [
        threading.Thread(target=work, args=(place,), daemon=True) for place in range(threads)
    ]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        time.sleep(0.2)
        now = time.monotonic()
        outcome.still = [place for place in range(threads) if now - latest[place] > STANDSTILL]
        if any(running[place].is_alive() for place in outcome.still):
            faulthandler.dump_traceback(sys.stderr)
            break
    outcome.still = [place for place in outcome.still if running[place].is_alive()]
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome
