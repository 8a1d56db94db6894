"""Chains compared with eager, and shrunk while they differ."""

from __future__ import annotations

import functools
import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

from tests.differential import differences
from tools.fuzz.check import shrink
from tools.fuzz.kernels.closeness import close
from tools.fuzz.kernels.placing import Input
from tools.fuzz.kernels.programs import MODES, Program, generate, on_cpu, simpler
from tools.fuzz.kernels.unwritten import ENVIRONMENT, fill_freed_memory
from tools.fuzz.processes import is_fatal, run_seeds

SHRINKING = 60.0
"""Seconds in which a program that differs is shrunk."""

HANGS = 300.0
"""Seconds after which a program that compiles, or is shrunk, counts as hung."""

NARROW = re.compile(r"torch\.(b?float16|float32)\b")
"""Programs whose intermediate values may have a dtype narrower than float64."""

DRAWS = re.compile("dropout|rand")
"""Programs that draw numbers, which are others in float64."""


def difference(program: Program) -> str | None:
    """The first difference between compiled and eager, or None."""
    try:
        scope = program.load()
    except SyntaxError:
        return None
    inputs = [Input.read(text) for text in program.inputs]
    sizes = [each.dtype.itemsize * math.prod(each.shape) for each in inputs]
    device = inputs[0].device
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differences(
                scope["program"],
                scope["make"],
                reference=scope["reference"],
                exact=DRAWS.search(program.text()) is None,
                losses=program.loss_numbers(),
                close=functools.partial(close, unit=1e-7 if NARROW.search(program.text()) else 0.0),
                before=None if device == "cpu" else lambda: fill_freed_memory(sizes, device),
                messages=False,
                versions="inputs",
                **MODES[program.mode],
            )
    except Exception as error:
        if is_fatal(error):
            raise
        lines = str(error).splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else ''}"
    return found[0] if found else None


def check(program: Program, note: Callable[[str], None] | None = None) -> str | None:
    """How this program differs, with its shrunk text; None if it does not. `note` gets how the
    whole program differs, since shrinking may end the process.
    """
    text = difference(program)
    if text is None:
        return None
    if note is not None:
        note(f"{text}\n\n{program.text()}")
    small = shrink(program, _difference_if_valid, simpler, SHRINKING)
    return f"{difference(small) or text}\n\n{small.text()}"


def _difference_if_valid(program: Program) -> str | None:
    """The first difference of a program whose indices, say, are not out of range, which would end
    a process with a GPU.
    """
    try:
        scope = on_cpu(program).load()
        scope["program"](*scope["make"]())
    except Exception:
        return None
    return difference(program)


def report(programs: int, seed: int, *, device: str, jobs: int, seconds: float) -> int:
    """Print what differs, from processes; 1 if anything does."""
    counts = {"equal": 0, "skipped": 0, "differ": 0}

    def add(line: dict[str, Any]) -> None:
        text = f"{line['ended']}\n\n{line['begun']}" if "ended" in line else line["differs"]
        counts["differ" if text else "skipped" if line.get("skipped") else "equal"] += 1
        if text:
            print(f"seed {line['seed']}: {text}", flush=True)

    words = ["tools.fuzz.kernels.process", device, str(time.time() + seconds)]
    run_seeds(words, range(seed, seed + programs), jobs, add, HANGS, ENVIRONMENT)
    print(f"{programs - counts['skipped']} programs, {counts['differ']} differ")
    return 1 if counts["differ"] else 0


def check_seed(seed: int, device: str = "cpu") -> str | None:
    """How the program of a seed differs; None if it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = generate(seed, device)
    return check(program)
