"""Whether this thread is inside a capture or a backend: what those call must not be captured in turn."""

from __future__ import annotations

import threading


class _Capturing(threading.local):
    """The package's dynamically scoped value: per thread, and restored on every exit."""

    depth = 0


CAPTURING = _Capturing()


def is_capturing() -> bool:
    """Whether this thread captures a program or compiles its graph."""
    return CAPTURING.depth > 0
