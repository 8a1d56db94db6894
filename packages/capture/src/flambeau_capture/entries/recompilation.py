"""What happens when a callable has been compiled often enough: which guard kept failing, and
whether a capture is more general than it.

    capture n == 1, recompile n == 2, n == 3, ...   at the limit: one entry for all n and all sizes;
                                                    if there is none, unmatched calls run eagerly

Which sizes and numbers were seen to change from call to call: in captures from then on they are
symbols, not constants.

    first call x: [4, 8], second x: [5, 8]     ->     {"L['x']": {0}}

A number of the program (an int, a float, a NumPy scalar) stands as dimension -1 of where it is
read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.guards.constants import constants_equal
from flambeau_capture.record import Break, Capture, Guard
from flambeau_capture.sources import (
    Argument,
    DictEntry,
    Item,
    Scope,
    Source,
    SourceLost,
    is_scalar_key,
)
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flambeau_capture.events import Event, GuardFailure

ENTRIES_DIED = 32
"""A callable is given up after this many times the limit of compilations, if its entries die."""

_SHOWN = 6
_THEN = re.compile(r", (was|had) .*")


@dataclass(frozen=True, slots=True)
class KeptFailing:
    """The guard that failed most often, and at the limit: its kind, and each failure in words."""

    kind: str
    text: str


def kept_failing(events: Iterable[Event], now: Sequence[GuardFailure]) -> KeptFailing:
    """What to blame, after these events and with what failed now."""
    failures = [
        failure
        for event in events
        if event.kind in ("recompile", "stored")
        for failure in event.failures
    ]
    failures += now
    if not failures:
        return KeptFailing("", "the objects that it was compiled for were gone each time")
    # Of guards that failed equally often, that of the entry which was used last.
    counts = Counter((failure.source, failure.kind) for failure in reversed(failures))
    source, kind = counts.most_common(1)[0][0]
    same = [failure for failure in failures if (failure.source, failure.kind) == (source, kind)]
    found = list(dict.fromkeys(_THEN.sub("", failure.found) for failure in same))
    more = ["..."] if len(found) > _SHOWN else []
    where = f" (read at {same[-1].where})" if same[-1].where else ""
    shown = "; ".join([*more, *(f"{source} {text}" for text in found[-_SHOWN:])])
    return KeptFailing(kind, f"{source} {same[0].expected}{where}; found: {shown}")


def is_more_general(
    captured: Capture | Break, failures: Sequence[GuardFailure], breaks: Sequence[Break | None]
) -> bool:
    """Whether a capture may serve later calls: it has none of the failed guards, and breaks where
    the entries break. Guards on tensors and numbers' types are weaker with symbolic sizes, and may
    recur.
    """
    if isinstance(captured, Break):
        return False
    if captured.eager or (
        captured.cause is not None
        and captured.cause.where not in {item.where for item in breaks if item is not None}
    ):
        return False
    failed = {(item.source, item.kind) for item in failures} - {("", "")}
    return not any(
        (guard.source.text(), guard.kind) in failed
        for guard in captured.guards
        if guard.kind not in _LESS_WHEN_SYMBOLIC
    )


_LESS_WHEN_SYMBOLIC = frozenset({"TENSOR", "INT", "FLOAT", "RELATION"})
OF_NUMBERS = _LESS_WHEN_SYMBOLIC | {"EQUALS"}
"""Kinds of guards that may fail for a size or a number."""


# ---------------------------------------------------------------- size changes


class SizeChanges:
    """What was learnt of one callable's calls.  The callable's lock guards it."""

    def __init__(self) -> None:
        self._dims: dict[str, frozenset[int]] = {}
        self._first: dict[str, tuple[int, ...] | int] | None = None

    def dims(self) -> dict[str, frozenset[int]]:
        """The dimensions that have changed, by the text of the tensor's (or number's) source."""
        return dict(self._dims)

    def expect(self, dims: Mapping[str, frozenset[int]]) -> None:
        """Take these dimensions to have changed."""
        for text, changed in dims.items():
            self._dims[text] = self._dims.get(text, frozenset()) | changed

    def forget(self) -> None:
        """Take nothing to have changed."""
        self._dims.clear()

    def clear(self) -> None:
        """Forget the first call, too."""
        self._dims.clear()
        self._first = None

    @property
    def has_first_call(self) -> bool:
        """Whether the sizes of a first call are remembered."""
        return self._first is not None

    def remember_first_call(self, scope: Scope) -> None:
        """Remember a call's sizes, for the next one."""
        self._first = dict(_sizes(scope))

    def compare_with_first_call(self, scope: Scope) -> None:
        """Note what differs from the call that was remembered."""
        assert self._first is not None
        for text, now in _sizes(scope):
            then = self._first.pop(text, now)
            if isinstance(then, tuple) and isinstance(now, tuple) and len(then) == len(now):
                for dim, (before, after) in enumerate(zip(then, now, strict=True)):
                    if before != after:
                        self._note(text, dim)
            elif type(then) is int and then != now:
                self._note(text, -1)

    def compare_with_entries(self, entries: tuple[Any, ...], scope: Scope) -> None:
        """Note which sizes and numbers of a call differ from those that entries were made for."""
        for entry in entries:
            for source, spec in entry.info.inputs:
                value = _load(source, scope)
                if (
                    isinstance(value, torch.Tensor)
                    and not isinstance(spec, (Expr, FloatExpr))
                    and value.ndim == len(spec.shape)
                ):
                    for dim, (then, now) in enumerate(zip(spec.shape, value.shape, strict=True)):
                        if isinstance(then, Expr) or then != now:
                            self._note(source.text(), dim)
            for guard in entry.info.guards:
                if guard.kind in ("INT", "FLOAT", "EQUALS"):
                    self._compare_numbers(guard, scope)

    def _compare_numbers(self, guard: Guard, scope: Scope) -> None:
        """Note that a number of a guard, perhaps inside a tuple, is another one in this call."""
        if guard.kind == "EQUALS" and is_scalar_key(guard.source):
            if _load(guard.source, scope) not in (guard.payload, None):
                self._note(guard.source.arguments[0].text(), -1)
            return
        pending: list[tuple[Source, Any]] = [(guard.source, guard.payload)]
        while pending:
            source, then = pending.pop()
            if type(then) is tuple:
                pending += [(Item(source, at), item) for at, item in enumerate(then)]
            elif type(then) is str:
                now = _load(source, scope)
                if type(source) is Argument and type(now) is str and now != then:
                    self._note(source.text(), -1)
            elif guard.kind != "EQUALS" or type(then) in (int, float):
                now = _load(source, scope)
                if type(now) in (int, float) and not constants_equal(now, then):
                    self._note(source.text(), -1)

    def _note(self, text: str, dim: int) -> None:
        self._dims[text] = self._dims.get(text, frozenset()) | {dim}


def _load(source: Any, scope: Scope) -> Any:
    try:
        return source.load(scope)
    except SourceLost:
        return None


def _sizes(scope: Scope) -> Iterator[tuple[str, tuple[int, ...] | int]]:
    """The shapes of the arguments that are tensors, and the ints, by the text of their source."""
    pending: list[tuple[Source, Any]] = [
        (Argument(name, index), value)
        for index, (name, value) in enumerate(
            zip(scope.function.__code__.co_varnames, scope.arguments, strict=False)
        )
    ]
    for source, value in pending:
        if isinstance(value, torch.Tensor):
            yield source.text(), tuple(value.shape)
        elif type(value) is int:
            yield source.text(), value
        elif type(value) in (list, tuple):
            pending += [(Item(source, at), item) for at, item in enumerate(value)]
        elif type(value) is dict:
            pending += [(DictEntry(source, key), item) for key, item in value.items()]
