"""What happens when a callable has been compiled often enough: which guard kept failing, and whether a capture is more general than it.

capture n == 1, recompile n == 2, n == 3, ...      at the limit: one entry for every n, and for every size; where that cannot be
                                                    had, calls that no entry serves run eagerly
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_capture.record import Break, Capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flambeau_capture.events import Event, GuardFailure

ENTRIES_DIED = 32
"""A callable whose entries die with the objects they are for is given up after this many times the limit of compilations."""

_SHOWN = 6
_THEN = re.compile(r", (was|had) .*")


@dataclass(frozen=True, slots=True)
class KeptFailing:
    """The guard that failed in most of the recompilations and on the call at the limit: its kind, and in words what was found each time."""

    kind: str
    text: str


def kept_failing(events: Iterable[Event], now: Sequence[GuardFailure]) -> KeptFailing:
    """What to blame, after these events and with what failed now."""
    failures = [
        failure for event in events if event.kind == "recompile" for failure in event.failures
    ]
    failures += now
    if not failures:
        return KeptFailing("", "the objects that it was compiled for were gone each time")
    # Of guards that failed equally often, that of the entry which was used last.
    counts = Counter((failure.origin, failure.kind) for failure in reversed(failures))
    origin, kind = counts.most_common(1)[0][0]
    same = [failure for failure in failures if (failure.origin, failure.kind) == (origin, kind)]
    found = list(dict.fromkeys(_THEN.sub("", failure.found) for failure in same))
    more = ["..."] if len(found) > _SHOWN else []
    where = f" (read at {same[-1].where})" if same[-1].where else ""
    shown = "; ".join([*more, *(f"{origin} {text}" for text in found[-_SHOWN:])])
    return KeptFailing(kind, f"{origin} {same[0].expected}{where}; found: {shown}")


def is_more_general(
    captured: Capture | Break, failures: Sequence[GuardFailure], breaks: Sequence[Break | None]
) -> bool:
    """Whether a capture may serve the calls to come: it has none of the guards that failed, and breaks where the entries do, if at all.

    A guard on a tensor or on the type of a number says less when sizes and numbers are symbolic: having it again is no failure.
    """
    if isinstance(captured, Break):
        return False
    if captured.eager or (
        captured.cause is not None
        and captured.cause.where not in {item.where for item in breaks if item is not None}
    ):
        return False
    failed = {(item.origin, item.kind) for item in failures} - {("", "")}
    return not any(
        (guard.origin.text(), guard.kind) in failed
        for guard in captured.guards
        if guard.kind not in _LESS_WHEN_SYMBOLIC
    )


_LESS_WHEN_SYMBOLIC = frozenset({"TENSOR", "INT", "FLOAT", "RELATION"})
OF_NUMBERS = _LESS_WHEN_SYMBOLIC | {"EQUALS"}
"""Kinds of guards that may fail for a size or a number."""
