"""Run the checks: those of sources first, then the longest, two more at a time than there are
processors, since each waits now and then: for a network, a disk, a clock.

python -m tools.checks              everything
python -m tools.checks lint types   only these stages
python -m tools.checks alone        the stages whose names begin with `alone:`
python -m tools.checks --jobs 1     one stage after the other
python -m tools.checks --list
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from rich.console import Console

from tools.checks import (
    alone,
    docs,
    end_to_end,
    isa_levels,
    public_surface,
    reasons_page,
    sanitizer,
    size_ratchet,
    sources,
    vocabulary,
    wheels,
)
from tools.checks.command import PACKAGES, CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable

SHORTER = [name for name in PACKAGES if name not in ("inductor", "capture")]
STAGES: dict[str, Callable[[], None]] = {
    "lint": sources.lint,
    "types": sources.types,
    "layers": sources.layers,
    "banned": sources.banned_imports,
    "size": size_ratchet.check,
    "surface": public_surface.check,
    "reasons": reasons_page.check,
    "vocabulary": vocabulary.check,
    "changelog": sources.changelog,
    **{f"end-to-end:{part}": partial(end_to_end.check, part) for part in range(end_to_end.PARTS)},
    "alone:inductor": partial(alone.check, "inductor"),
    "isa": isa_levels.check,
    "alone:capture": partial(alone.check, "capture"),
    **{f"alone:{name}": partial(alone.check, name) for name in SHORTER},
    "sanitize": sanitizer.check,
    "docs": docs.check,
    "wheels": wheels.check,
}


def main() -> int:
    """Run the named stages (all by default); exit status 1 if one fails."""
    parser = argparse.ArgumentParser(prog="checks", description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--list", action="store_true", help="name the stages and stop")
    parser.add_argument(
        "--jobs", type=int, default=2 + (os.cpu_count() or 1), help="how many stages run at a time"
    )
    arguments = parser.parse_args()
    console = Console(highlight=False)
    if arguments.list:
        console.print("\n".join(STAGES))
        return 0
    chosen: list[str] = []
    for word in arguments.stages or STAGES:
        named = [name for name in STAGES if name == word or name.startswith(f"{word}:")]
        if not named:
            parser.error(f"unknown stage {word}; known: {', '.join(STAGES)}")
        chosen += named
    if len(chosen) == 1 or arguments.jobs <= 1:
        failed = [name for name in chosen if not run_stage(name, console)]
    else:
        failed = run_beside(chosen, arguments.jobs, console)
    console.rule()
    for name in chosen:
        console.print(f"{'[red]failed' if name in failed else '[green]passed'}[/] {name}")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def run_stage(name: str, console: Console) -> bool:
    """Run a stage in this process and print its wall and CPU time; whether it passed."""
    console.rule(f"[bold]{name}")
    began, spent = time.perf_counter(), cpu_seconds()
    try:
        STAGES[name]()
        passed = True
    except CheckFailed as failure:
        console.print(f"[red]{name} failed[/]: {failure}")
        passed = False
    elapsed = time.perf_counter() - began
    console.print(f"{name}: {elapsed:.1f} s, {cpu_seconds() - spent:.1f} s of CPU time")
    return passed


def cpu_seconds() -> float:
    """The user and system time of this process and of the children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_beside(names: list[str], jobs: int, console: Console) -> list[str]:
    """Run stages in processes, `jobs` at a time; each one's output is shown when it ends. The
    stages that failed.
    """
    # OpenMP threads that wait by spinning would take the processors from the other stages.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    failed = []
    # Forked, since the imports above cost more than a short stage does.
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        running = {pool.submit(run_recorded, name): name for name in names}
        for ended in as_completed(running):
            passed, output = ended.result()
            console.out(output, end="")
            if not passed:
                failed.append(running[ended])
    return failed


def run_recorded(name: str) -> tuple[bool, str]:
    """Run a stage in this process; whether it passed, and what it and the commands that it ran
    printed.
    """
    with tempfile.TemporaryFile() as recorded:
        for descriptor in (1, 2):
            os.dup2(recorded.fileno(), descriptor)
        with (
            open(1, "w", closefd=False) as output,
            redirect_stdout(output),
            redirect_stderr(output),
        ):
            passed = run_stage(name, Console(highlight=False))
        recorded.seek(0)
        return passed, recorded.read().decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
