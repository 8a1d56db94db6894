"""A cache directory stays bounded: once a day, one process removes what has long been unused, and
then the oldest entries above the limit.

    <root>/trimmed      an empty file, whose time says when that was done last

Reading an entry makes it young again (`note_use`), to the day: a directory that is read often is
not written to at each read. The work takes place in a thread, beside the compile that stored
something; if the process ends meanwhile, the rest stays for the next day.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from flambeau_runtime.environment_errors import CacheError

DAY = 86400.0
MOST_UNUSED = 60 * DAY
"""Seconds for which an entry that nobody reads is kept."""

_STAMP = "trimmed"

_seen: set[Path] = set()
"""The directories that this process has looked at."""


def note_use(entry: Path) -> None:
    """Make the file of an entry young again, if it is older than a day."""
    with contextlib.suppress(OSError):  # removed meanwhile
        if time.time() - os.lstat(entry).st_mtime > DAY:
            os.utime(entry, follow_symlinks=False)


def trim_if_due(root: Path, limit: int) -> threading.Thread | None:
    """Start to trim a directory to `limit` bytes, if that was not done in the last day: by this
    process, once. The thread that does it, or None.
    """
    if root in _seen:
        return None
    _seen.add(root)
    stamp = root / _STAMP
    try:
        due = time.time() - os.lstat(stamp).st_mtime > DAY
        is_new = False
    except OSError:
        due, is_new = True, not (root / "entries").exists()
    if not due:
        return None
    try:  # first, for other processes that start at the same time
        descriptor = os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with contextlib.closing(os.fdopen(descriptor)):
            os.utime(descriptor)
    except OSError:
        return None
    if is_new:
        return None
    thread = threading.Thread(
        target=_trim, args=(root, limit), name="flambeau-cache-trimming", daemon=True
    )
    thread.start()
    return thread


def _trim(root: Path, limit: int) -> None:
    from flambeau_runtime.cache_contents import trim  # which imports the cache

    with contextlib.suppress(OSError, CacheError):
        trim(root, largest=limit, oldest=MOST_UNUSED)
