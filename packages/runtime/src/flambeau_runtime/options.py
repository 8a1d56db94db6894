"""RuntimeOptions: everything that changes how a Program is built and run, as one frozen value.

This package reads no environment variable; the meta-package does, and passes the result here.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


def default_cache_dir() -> Path:
    """`~/.cache/flambeau` of the user this process runs as, or a folder of theirs under the temporary directory."""
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    if home.is_dir() and os.access(home, os.W_OK):
        return home / ".cache" / "flambeau"
    return Path(tempfile.gettempdir()) / f"flambeau-{os.geteuid()}"


@dataclass(frozen=True)
class RuntimeOptions:
    """How to build and run.  Fields under "building" are part of a kernel's cache key."""

    cache_dir: Path = field(default_factory=default_cache_dir)
    use_cache: bool = True
    """Look into the on-disk cache; results are written to it in any case, since a kernel must be a file to be loaded."""

    # Building
    cxx: str = "g++"
    """The C++ compiler: a name on PATH or a path.  GCC, for its vector extensions and libmvec."""
    cxx_flags: tuple[str, ...] = ()
    """Flags added after our own."""
    isa: str | None = None
    """"avx512", "avx2" or "baseline" instead of what CPUID says (to build for another machine, or to compare)."""

    # Running
    executor: str = "auto"
    """"c", "python", or "auto": C where the extension is built and torch's C interface is found, else Python."""
    debug: bool = False
    """Check the Program when it is loaded and the arguments on every call."""
