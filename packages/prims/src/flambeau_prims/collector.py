"""Pause the cyclic garbage collector while compiling.

After a few large imports a full collection takes 0.1 s and more, and a trace allocates enough to
set off several. The collector is process-wide, so the pause counts the threads in it: the first one
in pauses, the last one out resumes.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Pause:
    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.was_enabled = False


_PAUSE = _Pause()


def _resume_in_child() -> None:
    """The threads that paused the collector are not in a forked child."""
    _PAUSE.lock = Lock()
    if _PAUSE.inside and _PAUSE.was_enabled:
        gc.enable()
    _PAUSE.inside = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic collection until the block ends, in any thread."""
    with _PAUSE.lock:
        if _PAUSE.inside == 0:
            _PAUSE.was_enabled = gc.isenabled()
        _PAUSE.inside += (
            1  # before the collector is off: another thread may fork between any two lines
        )
        gc.disable()
    try:
        yield
    finally:
        with _PAUSE.lock:
            if _PAUSE.inside == 1 and _PAUSE.was_enabled:
                gc.enable()
            _PAUSE.inside = max(0, _PAUSE.inside - 1)  # 0 where this thread forked inside
