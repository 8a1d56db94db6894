"""Entries that have just turned out not to serve a call: its guards held, but its graph found other
data than was assumed.

The call goes on to the other entries, then to `CompiledState.on_miss`, in the same thread: there
this says which need not be tried again.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.events import EntryInfo, GuardFailure


class _Violated(threading.local):
    """Per thread: for whose entries, and why each did not serve. It keeps no state alive: another
    entry may have served the call.
    """

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
        """The entries of this state that did not serve the call under way, which are then
        forgotten.
        """
        found = self._failures if self._state() is state else {}
        self._state, self._failures = lambda: None, {}
        return found


VIOLATED = _Violated()
