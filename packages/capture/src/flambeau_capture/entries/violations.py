"""Entries whose graph found data other than was assumed, so that they did not serve the call after
all: which, in this thread's current call, and why.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.events import EntryInfo, GuardFailure


class _Violated(threading.local):
    """Per thread: which entries did not serve the call, and why. It keeps no state alive."""

    def __init__(self) -> None:
        self._state: Callable[[], Any] = lambda: None
        self._failures: dict[EntryInfo, GuardFailure] = {}

    def add(self, state: Any, info: EntryInfo, failure: GuardFailure) -> None:
        """Note that an entry of this state (a CompiledState) did not serve the call under way."""
        if self._state() is not state:
            failures: dict[EntryInfo, GuardFailure] = {}
            self._state = weakref.ref(state, lambda _: failures.clear())
            self._failures = failures
        self._failures[info] = failure

    def take(self, state: Any) -> dict[EntryInfo, GuardFailure]:
        """The entries of this state that did not serve the current call; they are forgotten."""
        found = self._failures if self._state() is state else {}
        self._state, self._failures = lambda: None, {}
        return found


VIOLATED = _Violated()
