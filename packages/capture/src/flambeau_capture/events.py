"""What happens to a compiled callable, as data: captures, recompilations with the guards that
failed, breaks, limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_capture.guards.kinds import KINDS, Held, guard_text
from flambeau_capture.guards.program import first_failing
from flambeau_capture.sources import SourceLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from flambeau_capture.record import Assumption, Break, Guard, Opaque
    from flambeau_capture.sources import Scope, Source
    from flambeau_prims.size_floats import FloatExpr
    from flambeau_prims.sizes import Expr
    from flambeau_prims.spec import Spec
    from flambeau_prims.wrapper_subclasses import SubclassSpec


@dataclass(eq=False, slots=True)
class EntryInfo:
    """The description of an entry for reasons, reports and tests; it holds user objects weakly."""

    guards: tuple[Guard, ...] = ()
    inputs: tuple[tuple[Source, Spec | SubclassSpec | Expr | FloatExpr | Opaque], ...] = ()
    graph_module: fx.GraphModule | None = None
    text: str = ""
    """Source of the entry function; "" when the graph is called directly."""
    skipped: Break | None = None
    """Why calls that this entry serves run eagerly."""
    broken: Break | None = None
    """Why the graph ends in the middle of the function, which continues in other graphs."""

    assumptions: tuple[Assumption, ...] = ()
    """What its graph checks of data, where the program would otherwise go another way."""

    specialised: tuple[str, ...] = ()
    """Sizes that an operator made concrete: which, and which operator."""

    graph_key: str = ""
    """Of an entry that was read or written: which stored graph it calls."""

    stored: str = ""
    """"read" or "written": other processes may use it; else why not, if that is asked for."""

    def guard_texts(self) -> list[str]:
        """The guards in the user's terms, in the order they are checked."""
        return [guard_text(guard) for guard in self.guards]

    def is_dead(self) -> bool:
        """Whether an object that the entry was made for has died: the entry is useless."""
        return any(
            isinstance(guard.payload, Held) and guard.payload.get() is guard.payload
            for guard in self.guards
        )


@dataclass(frozen=True, slots=True)
class GuardFailure:
    """Why one entry did not serve a call: the first of its guards that did not hold, with what it
    wanted and what it found.

    `text` is the whole in the user's terms; `source` what was read (`L['x']`) and `where` the
    user's line that read it.
    """

    text: str
    kind: str = ""
    source: str = ""
    expected: str = ""
    found: str = ""
    where: str = ""

    def __str__(self) -> str:
        return f"{self.text} (read at {self.where})" if self.where else self.text


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a compiled callable.

    kind: "capture" (the first entry), "recompile" (a further one), "stored" (an entry that an
        earlier process has made), "eager" (a stance ran the call
    as it is), "eager_replay" (its graph raised, so it ran again),
        "violated" (its graph has found data other than was assumed, so another entry serves it),
        "generalise" (at the limit: an entry for all sizes and numbers follows), "break", "limit" or
        "plain_launch" (from the backend: a graph is not launched as a CUDA graph though asked to),
        "cpu_launch" (from the backend: CUDA graphs are asked for, and the graph is on a CPU),
        "ranks_differ" (an entry serves the call on some ranks of a process group, not on others).
    text: what happened, for people.
    seconds: how long it took, the backend's time included; `capture_seconds` is without it.
    failures: for each entry there was, the guard that kept it from serving the call.
    reason: why the call runs eagerly ("break" and "limit").
    entry: what was made, or read ("capture", "recompile" and "stored").
    """

    kind: str
    text: str
    seconds: float = 0.0
    capture_seconds: float = 0.0
    failures: tuple[GuardFailure, ...] = ()
    reason: Break | None = None
    entry: EntryInfo | None = None


def assumption_violated(assumption: Assumption) -> GuardFailure:
    """Why an entry did not serve a call whose guards held: what it assumes of data was not so."""
    return GuardFailure(
        text=assumption.violation,
        kind="ASSUMPTION",
        source=assumption.where,
        expected=assumption.what,
        found="does not hold",
    )


def failure_of(guards: Sequence[Guard], scope: Scope) -> GuardFailure:
    """The first of these guards that does not hold on a call."""
    failing = first_failing(guards, scope)
    if failing is None:
        return GuardFailure("all guards hold")
    guard = guards[failing]
    kind = KINDS[guard.kind]
    try:
        found = kind.difference(guard.source.load(scope), guard.payload)
    except SourceLost:
        found = "is no longer there"
    return GuardFailure(
        text=f"{guard.source.text()} {found}",
        kind=guard.kind,
        source=guard.source.text(),
        expected=kind.text(guard.payload),
        found=found,
        where=guard.where,
    )
