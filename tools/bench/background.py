"""Eager calls while their entry is compiled in the background, beside plain eager calls.

`python -m tools.bench.background CASE` measures one case in a fresh process with an empty cache:
JSON on stdout.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tools.bench.cases import Case
from tools.bench.model_cases import MODEL_CASES
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN_SECONDS = 3.0
LONGEST = 300.0
"""Seconds after which a compile counts as lost."""


def transformer() -> Case:
    """Four layers of a transformer's encoder."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    x = torch.randn(8, 64, 256)
    return Case(model, lambda f: f(x))


BACKGROUND_CASES: dict[str, Callable[[], Case]] = {
    "transformer": transformer,
    "resnet18_1": lambda: MODEL_CASES["resnet18_1"]("cpu"),
    "resnet18_16": lambda: MODEL_CASES["resnet18_16"]("cpu"),
    "bert_1": lambda: MODEL_CASES["bert_1"]("cpu"),
}


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(case_name: str) -> dict[str, Any]:
    """Plain calls, then calls until the entry serves them."""
    import flambeau
    from flambeau_capture import state_of

    torch.manual_seed(0)
    case = BACKGROUND_CASES[case_name]()
    with torch.no_grad():
        for _ in range(3):
            case.call(case.program)
        plain = calls_until(lambda since: since > PLAIN_SECONDS, lambda: case.call(case.program))
        compiled = flambeau.compile(case.program, options={"background": True})
        state = state_of(compiled._compiled)
        started = time.perf_counter()
        first = timed(lambda: case.call(compiled))
        calls = calls_until(
            lambda since: bool(state.entries) or since > LONGEST, lambda: case.call(compiled)
        )
        switched = time.perf_counter() - started
        compiled_call = calls_until(lambda since: since > 1.0, lambda: case.call(compiled))
        graphs = flambeau.explain(compiled).graphs
    return {
        "plain": statistics.median(plain),
        "plain_slowest": max(plain),
        "first": first,
        "while": statistics.median(calls),
        "while_slowest": max(calls),
        "calls": len(calls),
        "switched": switched,
        "compiled": statistics.median(compiled_call),
        "where": graphs[0].background if state.entries else "not compiled in time",
    }


def calls_until(done: Callable[[float], bool], call: Callable[[], Any]) -> list[float]:
    """Seconds of each call, until `done(seconds since the first)`."""
    started = time.perf_counter()
    seconds = [timed(call)]
    while not done(time.perf_counter() - started):
        seconds.append(timed(call))
    return seconds


def measure_apart(case_name: str) -> dict[str, Any]:
    """`measure` in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "FLAMBEAU_CACHE_DIR": cache}
        command = [sys.executable, "-m", "tools.bench.background", case_name]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def background_table(cases: list[str]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: ms a call, ratios to the median plain call, s until the entry serves."""
    headings = [
        "case", "plain ms", "slowest plain", "call that captures", "calls while compiling",
        "slowest while compiling", "switched s", "compiled ms", "where",
    ]  # fmt: skip
    rows = []
    for name in cases:
        found = measure_apart(name)
        plain = found["plain"]
        rows.append(
            [
                name,
                f"{plain * 1e3:.1f}",
                f"{found['plain_slowest'] / plain:.2f}x",
                f"{found['first'] / plain:.2f}x",
                f"{found['while'] / plain:.2f}x ({found['calls']})",
                f"{found['while_slowest'] / plain:.2f}x",
                f"{found['switched']:.1f}",
                f"{found['compiled'] * 1e3:.1f}",
                found["where"],
            ]
        )
        print(*rows[-1], file=sys.stderr, flush=True)
    return headings, rows


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
