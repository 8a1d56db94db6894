"""Kernels under the address sanitizer: a read or write outside of a buffer ends the process with a
report.

    export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
    ASAN_OPTIONS=detect_leaks=0 FLAMBEAU_SANITIZE=1 python program.py

Its library must be loaded before any other, since it replaces malloc: buffers of torch then have
poisoned borders. What lies in the same allocation is not distinguished. Only for finding errors of our
own: kernels are slow, and any of libasan's reports is an exit.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from flambeau_runtime.environment_errors import SanitizerNotLoaded

# One line of debug information names the loop; less optimisation, a report that names the right
# one.
FLAGS = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1", "-O1")


def preload(compiler: str) -> str | None:
    """The libraries that a process must begin with, as LD_PRELOAD takes them; None if the compiler
    has no sanitizer.

    The C++ library is one of them: the sanitizer looks for what it replaces there before Python
    loads any C++.
    """
    result = []
    for name in ("libasan.so", "libstdc++.so"):
        command = [compiler, f"-print-file-name={name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path = Path(done.stdout.strip())
        if not (path.is_absolute() and path.exists()):
            return None
        result.append(str(path.resolve()))
    return " ".join(result)


def is_loaded() -> bool:
    """Whether this process began with the sanitizer's library."""
    try:
        return "libasan" in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def flags() -> tuple[str, ...]:
    """The compiler's flags; SanitizerNotLoaded where kernels so built could not be loaded."""
    if not is_loaded():
        raise SanitizerNotLoaded("this process did not begin with the address sanitizer")
    return FLAGS
