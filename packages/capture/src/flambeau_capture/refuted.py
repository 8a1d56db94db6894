"""Entries that have just turned out not to serve a call: its guards held, but its graph found other data than was assumed.

The call goes on to the other entries, then to `CompiledState.on_miss`, in the same thread: there this says which need not be tried again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flambeau_capture.entry import EntryInfo
    from flambeau_capture.events import GuardFailure


class _Refuted(threading.local):
    """Per thread: for whose entries, and why each did not serve."""

    def __init__(self) -> None:
        self._state: Any = None
        self._failures: dict[EntryInfo, GuardFailure] = {}

    def add(self, state: Any, info: EntryInfo, failure: GuardFailure) -> None:
        """Note that an entry of this state (a CompiledState) did not serve the call under way."""
        if state is not self._state:
            self._state, self._failures = state, {}
        self._failures[info] = failure

    def take(self, state: Any) -> dict[EntryInfo, GuardFailure]:
        """The entries of this state that did not serve the call under way, which are then forgotten."""
        found = self._failures if state is self._state else {}
        self._state, self._failures = None, {}
        return found


REFUTED = _Refuted()
