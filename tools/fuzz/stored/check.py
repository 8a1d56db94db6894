"""Programs that a first process stores, and later ones find edited: each process compares its own
with eager.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.checks.command import ROOT
from tools.fuzz.stored.programs import OF_DATA, program_of, write

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE = 40
"""Programs of one process."""


@dataclass
class Found:
    """What became of programs in several processes."""

    differences: list[str] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    """Of programs that are as in the first process: how many were served, captured, refused."""
    refused: Counter[str] = field(default_factory=Counter)
    """Why entries were not stored."""
    captured: list[str] = field(default_factory=list)
    """Programs that are as in the first process and were captured again."""


def check(seeds: Sequence[int], processes: int, cache: Path | None = None) -> Found:
    """The programs of seeds, each in several processes one after another."""
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(seeds), _AT_ONCE):
            some = seeds[start : start + _AT_ONCE]
            _check_some(some, processes, Path(folder), cache or Path(folder) / "cache", found)
    return found


def _check_some(
    seeds: Sequence[int], processes: int, folder: Path, cache: Path, found: Found
) -> None:
    programs = [program_of(seed) for seed in seeds]
    refused: set[str] = set()
    for process in range(processes):
        same = {program.name: write(program, process, folder) for program in programs}
        outcomes = _run([program.name for program in programs], folder, cache)
        for program in programs:
            outcome = outcomes[program.name]
            where = f"seed {program.seed}, process {process}: {', '.join(program.features)}"
            if outcome["differs"]:
                found.differences.append(
                    f"{where} ({program.root}) {outcome['events']}\n{outcome['differs']}"
                )
            if process == 0:
                for text in outcome["entries"]:
                    if text not in ("written", "read", ""):
                        found.refused[text] += 1
                        refused.add(program.name)
            elif same[program.name] and program.name not in refused and outcome["events"]:
                kind = "captured" if "capture" in outcome["events"] else "served"
                found.served[kind] += 1
                if kind == "captured":
                    found.captured.append(f"{where} ({program.root}) {outcome['events']}")


def _run(names: list[str], folder: Path, cache: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.fuzz.stored.process", str(folder), *names],
        cwd=ROOT,
        env=os.environ
        | {
            "FLAMBEAU_CACHE_DIR": str(cache), "FLAMBEAU_GRAPH_CACHE": "1", "FLAMBEAU_CHECK": "0",
            "FLAMBEAU_PROGRESS": "0", "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{names}: {done.stderr[-4000:]}")
    outcomes: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def report(programs: int, seed: int, processes: int = 3) -> int:
    """Check programs, a third of them of data, print what differs and how many were read; 1 if
    any differs.
    """
    of_data = range(OF_DATA + seed, OF_DATA + seed + programs // 3)
    found = check([*range(seed, seed + programs - len(of_data)), *of_data], processes)
    print("\n\n".join(found.differences))
    print("captured again:", *found.captured, sep="\n  ")
    print("not stored:")
    for text, count in found.refused.most_common():
        print(f"  {count:3} {text}")
    print(f"{programs} programs, {len(found.differences)} differ; unchanged: {dict(found.served)}")
    return 1 if found.differences else 0
