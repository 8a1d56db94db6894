"""Interleaved timing: the candidates take turns, so that a slow moment of the machine hits all of
them.
"""

from __future__ import annotations

import compileall
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import torch

from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable


def interleave(
    candidates: dict[str, Callable[[], object]],
    *,
    device: str,
    rounds: int = 30,
    target: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds per call of each candidate; each turn repeats a call for about `target`
    seconds of the `clock`.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    repeats = {}
    for name, call in candidates.items():
        for _ in range(3):
            call()
        synchronize()
        started = clock()
        call()
        synchronize()
        repeats[name] = max(1, min(20_000, int(target / max(1e-7, clock() - started))))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            started = clock()
            for _ in range(repeats[name]):
                call()
            synchronize()
            seconds[name].append((clock() - started) / repeats[name])
    return {name: statistics.median(values) for name, values in seconds.items()}


@functools.cache
def compile_modules() -> None:
    """Compile our modules to bytecode, which fresh processes then read."""
    for folder in ROOT.glob("packages/*/src"):
        compileall.compile_dir(folder, quiet=2)


def cold(
    case: str,
    stack: str,
    device: str,
    *,
    dynamic: bool = False,
    mode: str | None = None,
    warm: bool = False,
) -> float:
    """Seconds of a first call in a fresh process with empty caches; with `warm`, of the next
    process, which finds what the first one left in them. Modules are compiled to bytecode before,
    as pip does when it installs them.
    """
    compile_modules()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "FLAMBEAU_CACHE_DIR": os.path.join(folder, "flambeau"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
            "FLAMBEAU_GRAPH_CACHE": str(int(warm)),
        }
        command = [sys.executable, "-m", "tools.bench.cold", case, stack, device]
        command += ["--dynamic"] * dynamic + ([f"--mode={mode}"] if mode else [])
        for _ in range(1 + warm):
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
        return json.loads(done.stdout.splitlines()[-1])["first"]
