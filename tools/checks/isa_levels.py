"""Kernels as they are built for lesser processors than this one: their numeric tests at each lower
ISA level (`alone:inductor` runs those that build for every level). Of a test with many cases,
those run that have each value of each parameter; `alone:inductor` runs all for this machine.
"""

from __future__ import annotations

from flambeau_runtime.build import isa
from tools.checks.command import run_python

INDUCTOR = "packages/inductor/tests/cpp"
UNIT = f"{INDUCTOR}/test_tile_unit.py"
"""Texts for processors with a tile unit, which have every level: `alone:inductor` runs them as they
are built for each lower one.
"""
PROGRAMS = "sums or variances or products or norm or softmax or losses or long_ or halves"
"""Programs of tests/programs whose results depend on how sums are added and numbers converted."""


def check() -> None:
    """Run the tests of C++ kernels, and programs that reduce and convert, at each level below the
    machine's.
    """
    lower = isa.LEVELS[isa.LEVELS.index(isa.detect()) + 1 :]
    if not lower:
        print("this machine has no level above the baseline: the other stages ran it")
    for level in lower:
        options = ("-q", "-p", "tests.covering", "--cover=values", f"--isa={level}")
        run_python("-m", "pytest", *options, INDUCTOR, f"--ignore={UNIT}")
        run_python("-m", "pytest", *options, "tests/cpu/test_programs.py", "-k", PROGRAMS)
