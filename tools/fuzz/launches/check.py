"""Run trials in processes: one that crashes or hangs costs the trial that it was at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tools.checks.command import ROOT

HANGS = 150.0
"""Seconds without a line after which a process counts as hung."""


@dataclass
class Found:
    """What came of some trials."""

    equal: int = 0
    replayed: int = 0
    """Of those that equal eager, the ones in which a recorded CUDA graph was replayed."""
    differences: list[str] = field(default_factory=list)

    def __add__(self, other: Found) -> Found:
        return Found(
            self.equal + other.equal,
            self.replayed + other.replayed,
            self.differences + other.differences,
        )


def check(seeds: Sequence[int], jobs: int) -> Found:
    """The trials of these seeds, in `jobs` processes at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(_check, (seeds[start::jobs] for start in range(jobs))), Found())


def _check(seeds: Sequence[int]) -> Found:
    """The trials of these seeds, one after another, in as many processes as it takes."""
    found = Found()
    left = list(seeds)
    while left:
        begun, message = "", ""
        done = 0
        process = _Process(left)
        for line in process.lines():
            begun = line.get("begins", begun)
            message = line.get("error", message)
            if "seed" in line:
                done += 1
                if line["differs"]:
                    found.differences.append(f"{line['differs']}\n{line['trial']}")
                else:
                    found.equal += 1
                    found.replayed += line["replays"] > 0
        left = left[done:]
        if left:
            end = f"ended with {process.code}: {message or process.tail}"
            found.differences.append(f"the process of seed {left.pop(0)} {end}\n{begun}")
    return found


class _Process:
    """A process that runs trials, killed when it hangs."""

    def __init__(self, seeds: Sequence[int]) -> None:
        command = [sys.executable, "-m", "tools.fuzz.launches.process", *map(str, seeds)]
        path = os.pathsep.join(filter(None, [os.fspath(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.tail = ""
        self.code = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it tells, line by line."""
        for text in iter(self._next, ""):
            if text.startswith('{"'):
                yield json.loads(text)
            else:
                self.tail = (self.tail + text)[-1200:]
        self.code = self.process.wait()

    def _next(self) -> str:
        assert self.process.stdout is not None
        timer = threading.Timer(HANGS, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()


def report(programs: int, seed: int, jobs: int) -> int:
    """Print what differs; 1 if anything does."""
    found = check(range(seed, seed + programs), jobs)
    for text in found.differences:
        print(text, flush=True)
    print(f"{programs} trials, {len(found.differences)} differ", end="; ")
    print(f"recorded CUDA graphs were replayed in {found.replayed} of the {found.equal} others")
    return 1 if found.differences else 0


def report_again(text: str) -> int:
    """Run one trial that was printed; 1 if it differs."""
    from tools.fuzz.launches.trial import Trial, run

    outcome = run(Trial.read(text))
    print(outcome.difference or f"equals eager ({outcome.replays} replays)")
    return 1 if outcome.difference else 0
