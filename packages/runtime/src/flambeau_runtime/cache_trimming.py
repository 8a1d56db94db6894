"""A cache directory stays bounded: once a day, one process removes what has long been unused, and
then the oldest entries above the limit.

    <root>/trimmed      a file whose time says when that was done last

An entry that is read becomes young again (`cache`). The work takes place in a thread, beside a
compile; if the process ends meanwhile, the rest stays for the next day.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from flambeau_runtime.cache import DAY, is_private
from flambeau_runtime.cache_contents import trim
from flambeau_runtime.environment_errors import CacheError

MOST_UNUSED = 60 * DAY
"""Seconds for which an entry that nobody reads is kept."""

_STAMP = "trimmed"

_seen: set[Path] = set()
"""The directories that this process has looked at."""


def trim_if_due(root: Path, limit: int) -> threading.Thread | None:
    """Start to trim a directory to `limit` bytes (0: never), if that was not done in the last day:
    by this process, once. The thread that does it, or None.
    """
    if root in _seen or not limit or not is_private(root):
        return None
    _seen.add(root)
    stamp = root / _STAMP
    try:
        if time.time() - os.lstat(stamp).st_mtime <= DAY:
            return None
    except OSError:
        pass  # never yet
    try:  # first, for other processes that start at the same time
        descriptor = os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(b"flambeau\n")
    except OSError:
        return None
    thread = threading.Thread(
        target=_trim, args=(root, limit), name="flambeau-cache-trimming", daemon=True
    )
    thread.start()
    return thread


def _trim(root: Path, limit: int) -> None:
    with contextlib.suppress(OSError, CacheError):
        trim(root, largest=limit, oldest=MOST_UNUSED)
