"""`reset`: forget the compiled code of this process.  What is on disk stays."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from flambeau_capture.compiled import state_of
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_runtime import release_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from flambeau_capture.compiled import CompiledState

_LIVE: weakref.WeakSet[CompiledState] = weakref.WeakSet()
_LOCK = fork_safe_lock()


def remember(compiled: Callable[..., Any]) -> None:
    """Have `reset` reach a compiled callable, for as long as it lives."""
    with _LOCK:
        _LIVE.add(state_of(compiled))


def reset() -> None:
    """Drop every compiled entry of all that `compile` has returned; next calls recompile. Memory
    that is kept for large results of further calls is given back.
    """
    with _LOCK:
        states = list(_LIVE)
    for state in states:
        state.reset()
    release_memory()
