"""Random tensor programs again, in a process that begins with the address sanitizer: kernels that
access what is not theirs end it with a report.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from flambeau_runtime.build import sanitizer
from tools.checks.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

SYMPTOM = re.compile(r"AddressSanitizer: .*")


def run(*words: str, compiler: str = "g++") -> subprocess.CompletedProcess[str]:
    """This interpreter with these arguments, its kernels built under the sanitizer; RuntimeError if
    the compiler has none.
    """
    libraries = sanitizer.preload(compiler)
    if libraries is None:
        raise RuntimeError(f"{compiler} has no address sanitizer: install its libasan")
    environment = os.environ | {
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0",
        "FLAMBEAU_SANITIZE": "1",
    }
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


def run_programs(arguments: Sequence[str]) -> int:
    """`python -m tools.fuzz tensors` with these arguments, sanitized; a report is shown with the
    program that caused it.
    """
    done = run("-m", "tools.fuzz", "tensors", *arguments, "--name-seeds")
    seeds = re.findall(r"^seed (\d+)$", done.stdout, re.MULTILINE)
    print(re.sub(r"^seed \d+\n", "", done.stdout, flags=re.MULTILINE), end="")
    if done.returncode and SYMPTOM.search(done.stderr) and seeds:
        from tools.fuzz.generate import generate

        print(f"seed {seeds[-1]}:\n\n{generate(int(seeds[-1])).text()}")
    if done.returncode:
        print(done.stderr[-8000:])
    return done.returncode
