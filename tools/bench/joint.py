"""Joint trace, functionalisation, passes and partition of BERT-base, static and dynamic: CPU
seconds in fresh processes: `python -m tools.bench.joint static|dynamic` is one of them.

Capture comes before the clock starts, and compilers behind `aot` get the graphs and return at once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from examples.models import bert
from tools.checks.command import ROOT

BATCH, LENGTH, VOCABULARY = 2, 64, 1000
CASES = "static", "dynamic"
AGAIN = 3
"""So many times a process repeats what it has done once."""


def seconds_of_stages(case: str) -> list[float]:
    """CPU seconds of the first and of later traces of one captured graph."""
    import flambeau
    from flambeau_autograd import AutogradOptions, aot

    seconds: list[float] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        for _ in range(1 + AGAIN):
            started = time.process_time()
            aot(gm, example_inputs, lambda *_: _compiled, options=AutogradOptions(decompose=True))
            seconds.append(time.process_time() - started)
        return gm.forward

    model = bert().train()
    compiled = flambeau.compile(model, backend=backend, dynamic=case == "dynamic", fullgraph=True)
    compiled(torch.randint(0, VOCABULARY, (BATCH, LENGTH)))
    return seconds


def _compiled(*_: Any) -> tuple[()]:
    return ()


def joint_table(repeats: int) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of the table."""
    rows = []
    for case in CASES:
        runs = [in_process(case) for _ in range(repeats)]
        first = statistics.median(run[0] for run in runs)
        later = statistics.median(seconds for run in runs for seconds in run[1:])
        rows.append([case, f"{first:.3f}", f"{later:.3f}"])
    return ["bert-base training", "first trace CPU s", "later traces CPU s"], rows


def in_process(case: str) -> list[float]:
    """`seconds_of_stages` in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.joint", case],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(text) for text in done.stdout.splitlines()[-1].split()]


if __name__ == "__main__":
    print(*seconds_of_stages(sys.argv[1]))
