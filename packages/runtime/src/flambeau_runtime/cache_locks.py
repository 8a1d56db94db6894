"""Locks of cache keys: of several processes of a host that need one object, one makes it.

    rank 0: missing, locked, built, stored, unlocked
    rank 1: missing, waits for the lock, finds rank 0's

A lock is a file that a process has locked (`flock`), so the system unlocks it when that process
dies. The holder removes the file; who waited for a removed file tries the next. Where files cannot
be locked, or a holder (stopped, say) keeps its lock for longer than `PATIENCE`, nobody waits: what
is made twice is stored twice, by rename.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from flambeau_runtime.environment_errors import CacheError

try:
    import fcntl
except ImportError:  # a system without it
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flambeau_runtime.cache import Cache

PATIENCE = 600.0
"""Seconds for which a process waits for another."""
_LONGEST_PAUSE = 0.05


class KeyLock:
    """The lock of one key of a cache."""

    def __init__(self, cache: Cache, kind: str, key: str) -> None:
        self._path: Path | None = None
        self._descriptor = -1
        if fcntl is not None:
            with contextlib.suppress(CacheError):  # whoever stores says so
                self._path = cache.lock_file(kind, key)

    def acquire(self, patience: float = 0.0) -> bool:
        """Take the lock, and wait for it for so many seconds: whether it is this one's, or nothing
        can be locked.
        """
        if self._path is None:
            return True
        end = time.monotonic() + patience
        pause = 0.001
        while True:
            if self._try():
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _try(self) -> bool:
        """Lock the file, if it is still the one of that name; True, too, where none can be."""
        assert self._path is not None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = -1
        try:
            descriptor = os.open(self._path, flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named = _is_named(self._path, descriptor)
        except BlockingIOError:
            named = False
        except OSError:  # no such folder any more, or a file system without locks
            self._path = None
            named = False
        if named:
            self._descriptor = descriptor
        elif descriptor >= 0:
            os.close(descriptor)
        return named or self._path is None

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        assert self._path is not None
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        # A child that was forked meanwhile has the file open, too.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _is_named(path: Path, descriptor: int) -> bool:
    """Whether a path still names an open file: its holder may have removed it meanwhile."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def one_at_a_time(cache: Cache, kind: str, key: str, patience: float = PATIENCE) -> Iterator[None]:
    """A block that only one process or thread runs at a time for a key, unless the one before takes
    longer than `patience` seconds. It begins by looking for what another has stored.
    """
    lock = KeyLock(cache, kind, key)
    lock.acquire(patience)
    try:
        yield
    finally:
        lock.release()
