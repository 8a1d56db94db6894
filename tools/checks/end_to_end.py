"""The end-to-end tests, through `flambeau.compile` only."""

from __future__ import annotations

from tools.checks.command import run_python


def check() -> None:
    """Run tests/, without those that need a GPU (they skip themselves) and without heavy sweeps."""
    run_python("-m", "pytest", "-q", "tests")
