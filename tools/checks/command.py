"""Running a command as part of a check."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository's root."""

PACKAGES = ("prims", "runtime", "capture", "autograd", "inductor", "flambeau")
"""The packages, each after those that it depends on."""


class CheckFailed(Exception):
    """A check found something wrong; the text says what, for the person who has to mend it."""


def module_name(package: str) -> str:
    """The import name of a package: `flambeau_prims` for prims, `flambeau` for the meta-package."""
    return package if package == "flambeau" else f"flambeau_{package}"


def run(*words: str | Path, cwd: Path = ROOT, clean: bool = False) -> None:
    """Run a command, its output shown; CheckFailed if it exits non-zero.

    `clean` drops what an enclosing environment put into the process's variables, for commands that
    use another one.
    """
    command = [str(word) for word in words]
    print(f"$ {shlex.join(command)}", flush=True)
    environment = dict(os.environ)
    if clean:
        for name in list(environment):
            if name.startswith(("HATCH_ENV", "PYTHONPATH", "VIRTUAL_ENV")):
                del environment[name]
    status = subprocess.run(command, cwd=cwd, env=environment, check=False).returncode
    if status:
        raise CheckFailed(f"`{shlex.join(command)}` in {cwd} exited with {status}")


def run_python(*words: str | Path, cwd: Path = ROOT) -> None:
    """Run this interpreter with the given arguments."""
    run(sys.executable, *words, cwd=cwd)
