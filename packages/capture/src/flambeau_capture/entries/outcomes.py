"""What the steps of a compile pass on: the call, its capture, and the entry that was made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau_capture.guards import kinds
from flambeau_capture.record import Break

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau_capture.entries.entry import PreparedEntry
    from flambeau_capture.entries.entry_parts import EntryParts
    from flambeau_capture.events import EntryInfo, GuardFailure
    from flambeau_capture.record import Capture
    from flambeau_capture.sources import Scope


@dataclass(frozen=True, slots=True)
class Call:
    """A call that no entry serves: the callable and its living entries, the call's arguments, and
    why each entry does not serve it.

    `violated` are the entries whose graphs have found data other than was assumed.
    """

    compiled: Any
    entries: tuple[Any, ...]
    scope: Scope
    reasons: tuple[GuardFailure, ...]
    violated: Mapping[EntryInfo, GuardFailure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A capture that a backend is to compile, and what its entry needs besides."""

    captured: Capture
    entry: PreparedEntry
    seconds: float
    handler: Any
    changed: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Made:
    """The outcome of a capture: an entry, why there is none, or one that is eager or breaks."""

    entry: Any
    broken: Break | None
    capture_seconds: float
    eager: bool = False
    parts: EntryParts | None = None


def unstable(entry: Any, scope: Scope) -> Break | None:
    """Why an entry does not serve the call it was made from, if so."""
    failing = entry.program.failed(scope.function, scope.arguments)
    if failing is None:
        return None
    guard = entry.info.guards[failing]
    return Break(
        "guard-unstable",
        f"the guard {kinds.guard_text(guard)!r} does not hold on the very call it was made from",
        guard.where,
        "this is a defect of capture or a value that differs at each reading",
    )


def same_graph(one: EntryInfo, other: EntryInfo) -> bool:
    """Whether two entries assume the same of the data that they are given."""
    graphs = one.graph_module, other.graph_module
    if not one.assumptions or one.assumptions != other.assumptions:
        return False
    if one.graph_key and one.graph_key == other.graph_key:
        return True
    if None in graphs:
        return False
    codes = [graph.code for graph in graphs if graph is not None]
    return codes[0] == codes[1]
