"""Run trials in processes: one that crashes or hangs costs the trial that it was at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.fuzz.processes import run_seeds


@dataclass
class Found:
    """What came of some trials."""

    equal: int = 0
    replayed: int = 0
    """Of those that equal eager, the ones in which a recorded CUDA graph was replayed."""
    differences: list[str] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Count the outcome of a trial."""
        if "ended" in line:
            self.differences.append(f"{line['ended']}\n{line['begun']}")
        elif line["differs"]:
            self.differences.append(f"{line['differs']}\n{line['trial']}")
        else:
            self.equal += 1
            self.replayed += line["replays"] > 0


def check(seeds: Sequence[int], jobs: int) -> Found:
    """The trials of these seeds, in `jobs` processes at a time."""
    found = Found()
    run_seeds(["tools.fuzz.launches.process"], seeds, jobs, found.add)
    return found


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
