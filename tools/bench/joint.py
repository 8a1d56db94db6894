"""Joint trace, functionalisation, passes and partition of BERT-base, static and dynamic, beside
torch.compile's: CPU seconds in fresh processes: `python -m tools.bench.joint flambeau|torch
static|dynamic` is one of them.

Capture comes before the clock starts, and compilers behind it get the graphs and return at once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from examples.models import bert
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, LENGTH, VOCABULARY = 2, 64, 1000
CASES = "static", "dynamic"
AGAIN = 3
"""So many times a process repeats what it has done once."""


def of_flambeau(case: str) -> list[float]:
    """CPU seconds of the first and of later traces of one captured graph."""
    import flambeau
    from flambeau_autograd import AutogradOptions, aot

    options = AutogradOptions(decompose=True)
    stages = lambda gm, inputs: aot(gm, inputs, lambda *_: _compiled, options=options)  # noqa: E731
    return _seconds(flambeau.compile, stages, 1 + AGAIN, case)


def of_torch(case: str) -> list[float]:
    """CPU seconds of torch.compile's first trace, with the passes that its default backend has."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    torch._functorch.config.enable_autograd_cache = False
    stages = aot_autograd(
        fw_compiler=lambda *_: _boxed,
        bw_compiler=lambda *_: _boxed,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    return _seconds(torch.compile, stages, 1, case)


COMPILERS = {"flambeau": of_flambeau, "torch": of_torch}


def _seconds(
    compile_model: Callable[..., Any], stages: Callable[..., Any], times: int, case: str
) -> list[float]:
    seconds: list[float] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        for _ in range(times):
            started = time.process_time()
            stages(gm, example_inputs)
            seconds.append(time.process_time() - started)
        return gm.forward

    model = bert().train()
    compiled = compile_model(model, backend=backend, dynamic=case == "dynamic", fullgraph=True)
    compiled(torch.randint(0, VOCABULARY, (BATCH, LENGTH)))
    return seconds


def _compiled(*_: Any) -> tuple[()]:
    return ()


def _boxed(_: list[Any]) -> tuple[()]:
    return ()


_boxed._boxed_call = True  # type: ignore[attr-defined]


def joint_table(repeats: int) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of the table."""
    rows = []
    for case in CASES:
        runs = [in_process("flambeau", case) for _ in range(repeats)]
        first = statistics.median(run[0] for run in runs)
        later = statistics.median(seconds for run in runs for seconds in run[1:])
        (theirs,) = in_process("torch", case)
        rows.append(
            [case, f"{first:.3f}", f"{later:.3f}", f"{theirs:.1f}", f"{theirs / first:.0f}"]
        )
    headings = ["bert-base training", "first CPU s", "later CPU s", "torch's first CPU s", "ratio"]
    return headings, rows


def in_process(compiler: str, case: str) -> list[float]:
    """CPU seconds of the stages of a compiler, measured in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.joint", compiler, case],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(text) for text in done.stdout.splitlines()[-1].split()]


if __name__ == "__main__":
    print(*COMPILERS[sys.argv[1]](sys.argv[2]))
