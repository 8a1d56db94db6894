"""Fuzzing in separate processes: one that crashes or hangs costs the seed that it was at.

A process is a module run with seeds as its last arguments. It prints lines of JSON: {"begins": a
program}, {"error": a message}, and {"seed": ...} with the outcome of each seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from tools.checks.command import ROOT


class Process:
    """A process that runs seeds, killed when it hangs."""

    def __init__(self, words: Sequence[str], hangs: float, environment: Mapping[str, str]) -> None:
        """words: the module's name, then its arguments. The others: see `run_seeds`."""
        self.hangs = hangs
        path = os.pathsep.join(filter(None, [os.fspath(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, **environment},
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
        timer = threading.Timer(self.hangs, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()


def run_seeds(
    words: Sequence[str],
    seeds: Sequence[int],
    jobs: int,
    report: Callable[[dict[str, Any]], None],
    hangs: float = 150.0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Report the outcome of each seed, from `jobs` processes at a time; that of a process which
    ended early has "ended" instead of what the module tells, and "begun": the program.

    words: the module's name, then its arguments before the seeds. hangs: seconds without a line
    after which a process is killed. environment: variables of the processes beside this one's.
    """
    with ThreadPoolExecutor(jobs) as pool:
        parts = (seeds[start::jobs] for start in range(jobs))
        list(pool.map(lambda part: _run_part(words, part, report, hangs, environment), parts))


def _run_part(
    words: Sequence[str],
    seeds: Sequence[int],
    report: Callable[[dict[str, Any]], None],
    hangs: float,
    environment: Mapping[str, str],
) -> None:
    left = list(seeds)
    while left:
        begun, message = "", ""
        process = Process([*words, *map(str, left)], hangs, environment)
        for line in process.lines():
            begun = line.get("begins", begun)
            message = line.get("error", message)
            if "seed" in line:
                left.remove(line["seed"])
                report(line)
        if left:
            seed = left.pop(0)
            cause = f"ended with {process.code}: {message or process.tail}"
            report({"seed": seed, "ended": f"the process of seed {seed} {cause}", "begun": begun})


def is_fatal(error: BaseException) -> bool:
    """Whether nothing runs on the device after this error."""
    return "CUDA error" in str(error) or type(error).__name__ == "AcceleratorError"
