"""Locks that a forked child finds free, whatever other threads of its parent were doing.

What these locks guard is consistent between any two bytecodes (a dict, a list, a tuple replaced as
a whole), so a child may go on where another thread stood. A re-entrant lock that the forking thread
itself holds stays its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()
_ADDING = (
    threading.RLock()
)  # re-entrant: the garbage collector may run a finalizer that makes a lock


def fork_safe_lock() -> threading.Lock:
    """A `threading.Lock`; no thread may fork while it holds it."""
    return _remembered(threading.Lock())


def fork_safe_rlock() -> threading.RLock:
    """A `threading.RLock`."""
    return _remembered(threading.RLock())


def _remembered(lock: Any) -> Any:
    with _ADDING:
        _LOCKS.add(lock)
    return lock


def _renew() -> None:
    _ADDING._at_fork_reinit()  # type: ignore[attr-defined]
    for lock in list(_LOCKS):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
