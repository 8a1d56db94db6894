"""The end-to-end tests, through `flambeau.compile` only."""

from __future__ import annotations

import tempfile

from tools.checks.command import ROOT, run_python

PARTS = 4
"""They take half of the time of all checks, so they run as stages beside each other."""

_KERNELS = tempfile.TemporaryDirectory(prefix="flambeau-kernels-")
"""Where the parts build kernels: what one has built, the others read. Removed as the checks end."""


def check(part: int) -> None:
    """Run one part of tests/ (what needs a GPU skips itself), of tests with three parameters and
    more a part that has each pair of values; the last also runs the tour of the stages.
    """
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py"))
    cases = ("-p", "tests.covering", "--cover=pairs")
    kernels = f"--kernels={_KERNELS.name}"
    run_python("-m", "pytest", "-q", *cases, kernels, *files[part::PARTS])
    if part == PARTS - 1:
        run_python("docs/tour.py")
