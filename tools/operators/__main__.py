"""`python -m tools.operators`: count, for every operator of torch's operator tests that takes
float32, what Flambeau makes of it.

python -m tools.operators                      count all, and print a line for each and the table
python -m tools.operators --ops logit renorm   count these
python -m tools.operators --page               rewrite docs/operators.md
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tools.operators.count import CLASSES, Outcome, count_all, names
from tools.operators.page import PAGE, page

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLES = 4
"""Samples of each operator, spread over all of them."""
RECYCLE = 120
"""After so many operators worker processes are replaced: compiled programs stay in their memory."""


def main() -> int:
    """Count and print, or write the page; 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.operators", description=__doc__)
    parser.add_argument("--ops", nargs="+", help="names of op_db (mul, nn.functional.gelu)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="per operator; 0: all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="rewrite docs/operators.md")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page())
        return 0
    outcomes = count_in_parallel(options.ops or names(), options.samples, options.jobs)
    print(table(outcomes))
    return 0


def count_in_parallel(wanted: list[str], samples: int, jobs: int) -> list[Outcome]:
    """What becomes of these operators, static and dynamic, in the order of the names; a line is
    printed for each as soon as it is counted.
    """
    outcomes: list[Outcome] = []
    for start in range(0, len(wanted), RECYCLE):
        part = wanted[start : start + RECYCLE]
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            for both in pool.map(count_all, [(name, samples) for name in part]):
                outcomes += both
                print("\n".join(map(line, both)), flush=True)
        print(f"{len(outcomes) // 2} of {len(wanted)}", file=sys.stderr, flush=True)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """How many operators are in each class."""
    lines = ["| sizes | " + " | ".join(CLASSES) + " |", "|---" * (len(CLASSES) + 1) + "|"]
    for dynamic, title in ((False, "static"), (True, "dynamic")):
        kinds = Counter(outcome.kind for outcome in outcomes if outcome.dynamic is dynamic)
        lines.append(f"| {title} | {' | '.join(str(kinds[kind]) for kind in CLASSES)} |")
    return "\n".join(lines)


def line(outcome: Outcome) -> str:
    """One outcome, in a line."""
    parts = [outcome.name, "dynamic" if outcome.dynamic else "static", outcome.kind]
    parts.append(" ".join(outcome.calls))
    for title in ("backward", "reasons", "specialises"):
        listed = getattr(outcome, title)
        if listed:
            parts.append(f"{title}: {' '.join(listed)}")
    return " | ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
