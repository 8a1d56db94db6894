"""The names of the ranges that profilers show: readable, with the user's lines.

    Launch("cpu_mul_sin_0", lines=("/home/me/model.py:5", "/home/me/model.py:6"))
                                        ->  "cpu_mul_sin_0 (model.py:5,6)"
    the Program "forward" of "M graph 0"  ->  "M graph 0 forward (model.py:5,6,9)"

`csrc/profile_ranges.c` opens a range for each call of a Program and for each of its steps that
launches or calls, if a profiler listens to the thread; here is the same for the Python executor.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
import torch.autograd.profiler

from flambeau_runtime.program import Extern, Launch, Program, Step

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_LINES = 6
"""Lines that a name holds; the number of the others follows."""


def name_of_step(step: Step) -> str | None:
    """The name of a kernel's launch or an operator's call, None for other steps."""
    if isinstance(step, Launch):
        return step.kernel + _places(step.lines)
    if isinstance(step, Extern):
        return step.op + _places(step.lines)
    return None


def name_of_program(program: Program, title: str = "") -> str:
    """The name of a call of the Program; `title` says of which graph it is."""
    lines = [
        line for step in program.steps if isinstance(step, (Launch, Extern)) for line in step.lines
    ]
    return f"{title} {program.name}".lstrip() + _places(lines)


def range_of(name: str | None) -> contextlib.AbstractContextManager[None]:
    """A range of this name where a profiler runs in this process."""
    if name is None or not torch.autograd.profiler._is_profiler_enabled:
        return contextlib.nullcontext()
    made: contextlib.AbstractContextManager[None] = torch._C._profiler._RecordFunctionFast(name)
    return made


def _places(lines: Iterable[str]) -> str:
    """ " (a.py:5,6, b.py:9)", in the order of the program text."""
    distinct = dict.fromkeys(lines)
    places = sorted(map(_place, distinct), key=lambda place: (place[0], place[1]))
    files: dict[str, list[str]] = {}
    for file, number in places[:MOST_LINES]:
        files.setdefault(file, []).append(str(number))
    texts = [f"{file}:{','.join(numbers)}" for file, numbers in files.items()]
    if len(places) > MOST_LINES:
        texts.append(f"{len(places) - MOST_LINES} more")
    return f" ({', '.join(texts)})" if texts else ""


def _place(line: str) -> tuple[str, int]:
    path, _, number = line.rpartition(":")
    name = path.replace("\\", "/").rpartition("/")[2]
    return (name, int(number)) if number.isdecimal() else (line, 0)
