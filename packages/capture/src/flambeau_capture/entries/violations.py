"""Entries whose graph found data other than was assumed, so that they did not serve the call after
all: which, in this thread's current call, and what follows from it for later captures.

    x.max() > 0 was assumed  ->  the entry is dropped, the next one assumes the other way
    the same line again      ->  the line is blocklisted, the next entry has a graph break there

A process that reads stored entries goes the same way: each entry is stored with the lines that were
violated, and blocklisted, when it was captured (`Violations`).
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flambeau_capture.events import EntryInfo, GuardFailure
    from flambeau_capture.record import Assumption

    Variant = tuple[str, tuple[tuple[str, str], ...]]


class _Violated(threading.local):
    """Per thread: which entries did not serve the call, and why. It keeps no state alive."""

    def __init__(self) -> None:
        self._state: Callable[[], Any] = lambda: None
        self._failures: dict[EntryInfo, GuardFailure] = {}
        self._taken: weakref.WeakKeyDictionary[Any, dict[EntryInfo, GuardFailure]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, state: Any, info: EntryInfo, failure: GuardFailure) -> None:
        """Note that an entry of this state (a CompiledState) did not serve the call under way."""
        if self._state() is not state:
            failures: dict[EntryInfo, GuardFailure] = {}
            self._state = weakref.ref(state, lambda _: failures.clear())
            self._failures = failures
        self._failures[info] = failure

    def take(self, state: Any, *, again: bool = False) -> dict[EntryInfo, GuardFailure]:
        """The entries of this state that did not serve the current call; they are forgotten.
        `again`: the call has taken some before.
        """
        found = self._failures if self._state() is state else {}
        before = self._taken.pop(state, {})
        if again:
            found = {**before, **found}
        if found:
            self._taken[state] = dict(found)
        self._state, self._failures = lambda: None, {}
        return found

    def has(self, state: Any, info: EntryInfo) -> bool:
        """Whether an entry of this state did not serve the call under way."""
        return self._state() is state and info in self._failures


VIOLATED = _Violated()


@dataclass(frozen=True, slots=True)
class Violations:
    """What is known of assumptions that did not hold when an entry is looked for, or captured."""

    lines: frozenset[str] = frozenset()
    """Where an assumption was violated, by this call or before."""
    blocklisted: frozenset[str] = frozenset()
    """Where the data decide either way: nothing is assumed there."""
    tried: frozenset[Variant] = frozenset()
    """The entries that do not serve the call, or were dropped: graph keys and assumptions."""

    def as_json(self) -> dict[str, list[str]]:
        """What a stored entry says of its capture."""
        return {"lines": sorted(self.lines), "blocklisted": sorted(self.blocklisted)}

    def candidates(self, entries: Iterable[Any]) -> list[Any]:
        """Of stored entries those that may serve the call: first those that were captured when as
        much was known.
        """
        fitting = [entry for entry in entries if self._admits(entry)]
        return sorted(fitting, key=lambda entry: entry["after"]["lines"] != sorted(self.lines))

    def _admits(self, entry: Any) -> bool:
        try:
            assumed = tuple((str(where), str(what)) for where, what in entry["assumptions"])
            blocklisted = self.blocklisted.issuperset(entry["after"]["blocklisted"])
            entry["after"]["lines"]
            key = "" if entry["graph"] is None else str(entry["graph"]["key"])
        except (LookupError, TypeError, ValueError):
            return False
        if not blocklisted or any(where in self.blocklisted for where, _ in assumed):
            return False
        return (key, assumed) not in self.tried


class ViolatedLines:
    """What one callable has learnt of the data that its entries assume something of."""

    def __init__(self) -> None:
        self.blocklisted: frozenset[str] = frozenset()
        """Lines of the program where data have been seen to decide either way, twice."""
        self._once: set[str] = set()
        self._dropped: set[Variant] = set()

    def add(self, info: EntryInfo, assumption: Assumption) -> None:
        """An entry was dropped because an assumption of it does not hold."""
        if assumption.where in self._once:
            self.blocklisted |= {assumption.where}
        self._once.add(assumption.where)
        if info.graph_key:
            self._dropped.add(_variant(info))

    def clear(self) -> None:
        """Forget all."""
        self.blocklisted = frozenset()
        self._once.clear()
        self._dropped.clear()

    def known(self, violated: Mapping[EntryInfo, GuardFailure]) -> Violations:
        """What is known at a call that has violated assumptions of some entries."""
        lines = self._once.union(failure.source for failure in violated.values())
        tried = self._dropped.union(_variant(info) for info in violated if info.graph_key)
        return Violations(frozenset(lines), self.blocklisted, frozenset(tried))


def _variant(info: EntryInfo) -> Variant:
    return info.graph_key, tuple((each.where, each.what) for each in info.assumptions)
