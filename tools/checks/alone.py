"""A package's tests, in an environment that holds only what the package declares."""

from __future__ import annotations

from tools.checks.command import ROOT, run


def check(package: str) -> None:
    """Run the suite of one package."""
    run("hatch", "run", "alone:test", cwd=ROOT / "packages" / package, clean=True)
