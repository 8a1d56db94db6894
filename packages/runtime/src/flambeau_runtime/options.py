"""RuntimeOptions: everything that changes how a Program is built and run, as one frozen value.

This package reads no environment variable; the meta-package does, and passes the result here.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


def default_cache_dir() -> Path:
    """`~/.cache/flambeau` of this process's user, or a folder of theirs in the temporary one."""
    uid = os.geteuid()
    with contextlib.suppress(KeyError):  # a user without an account, as in containers
        folder = Path(pwd.getpwuid(uid).pw_dir) / ".cache" / "flambeau"
        if _can_be_made(folder):
            return folder
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # none can be written to: the first build says so
        temporary = "/tmp"
    return Path(temporary) / f"flambeau-{uid}"


def _can_be_made(folder: Path) -> bool:
    """Whether the nearest existing folder at or above this one can be written to."""
    nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


@dataclass(frozen=True)
class RuntimeOptions:
    """How to build and run.  Fields under "building" are part of a kernel's cache key."""

    cache_dir: Path = field(default_factory=default_cache_dir)
    use_cache: bool = True
    """Read the on-disk cache; results are always written, as a loaded kernel is a file."""

    shared_cache: str | None = None
    """A cache directory that is read, never written: root's or the user's, and writable by nobody
    else (`object_stores.py`).
    """
    remote_cache: str | None = None
    """A store of several machines: "redis://host:6379/0" or "file:///mnt/cache"."""
    remote_cache_key: str | None = None
    """The file of the secret by which objects of the remote store are signed and checked."""

    cache_limit: int = 8 << 30
    """Bytes that the cache directory may grow to: once a day, the entries that were not used for
    the longest time are removed (`cache_trimming.py`). 0 sets no limit, and removes nothing.
    """
    graph_cache: bool = True
    """Read and write compiled graphs and whole entries in the cache directory: another process
    that makes the same call captures and compiles nothing (`flambeau/stored_entries.py`).
    """

    # Building
    cxx: str = "g++"
    """The C++ compiler: a name on PATH, a path, or a command. GCC, for libmvec and vectors."""
    cxx_flags: tuple[str, ...] = ()
    """Flags added after our own."""
    isa: Literal["avx512", "avx2", "baseline", None] = None
    """"avx512", "avx2" or "baseline" instead of CPUID's answer (to cross-build or compare)."""
    sanitize: bool = False
    """Build C++ kernels under the address sanitizer (`build/sanitizer.py`)."""

    # Running
    executor: Literal["c", "python", "auto"] = "auto"
    """"c", "python", or "auto": C if the extension is built and loads, else Python."""
    cuda_graphs: Literal["auto", "always", "never"] = "auto"
    """Launch a Program on a GPU as one CUDA graph: "auto" where launching it kernel by kernel takes
    longer than running it, "always" where it can be recorded.
    """
    max_autotune_seconds: float = 120.0
    """How long the kernels of one graph may be tuned; what is not measured then is not chosen."""
    debug: bool = False
    """Check the Program when it is loaded and the arguments on every call."""
