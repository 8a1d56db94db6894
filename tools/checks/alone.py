"""Each package's tests, in an environment that holds only what the package declares."""

from __future__ import annotations

from tools.checks.command import PACKAGES, ROOT, CheckFailed, run


def check() -> None:
    """Run every package's suite; all of them run even if one fails."""
    failures = []
    for package in PACKAGES:
        try:
            run("hatch", "run", "alone:test", cwd=ROOT / "packages" / package, clean=True)
        except CheckFailed:
            failures.append(package)
    if failures:
        raise CheckFailed(f"tests of {', '.join(failures)}")
