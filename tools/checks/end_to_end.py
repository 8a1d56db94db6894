"""The end-to-end tests, through `flambeau.compile` only."""

from __future__ import annotations

from tools.checks.command import run_python


def check() -> None:
    """Run tests/ (what needs a GPU skips itself) and the tour of the stages."""
    run_python("-m", "pytest", "-q", "tests")
    run_python("docs/tour.py")
