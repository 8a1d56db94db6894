"""The reference check: guards evaluated one by one in Python, through their sources.

The C programs must agree with it; it serves calls itself where the C core is not built, and
explains failures everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from flambeau_capture.guards.kind import KINDS
from flambeau_capture.record import Guard
from flambeau_capture.sources import Scope, Source, SourceLost


def holds(guard: Guard, scope: Scope) -> bool:
    """Whether one guard holds on a call."""
    try:
        # The condition of a RELATION, and the state of torch, are not about the source's value.
        value = (
            None if guard.kind in ("RELATION", "TORCH_STATE", "STATE") else guard.source.load(scope)
        )
        return KINDS[guard.kind].holds(value, guard, scope)
    except SourceLost:
        return False


def first_failing(guards: Sequence[Guard], scope: Scope) -> int | None:
    """Index of the first guard that does not hold on a call, or None."""
    return next((at for at, guard in enumerate(guards) if not holds(guard, scope)), None)


class PythonProgram:
    """A guard program run in Python; see `program.GuardProgram`."""

    def __init__(self, guards: Sequence[Guard], inputs: Sequence[Source]) -> None:
        self._guards = tuple(guards)
        self._inputs = tuple(inputs)

    def failed(self, function: FunctionType, arguments: tuple[Any, ...]) -> int | None:
        """Index of the first guard that fails on this call; None when all hold."""
        return first_failing(self._guards, Scope(function, arguments))

    def load(self, function: FunctionType, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values of the inputs, or None when a guard fails or an input is lost."""
        scope = Scope(function, arguments)
        if first_failing(self._guards, scope) is not None:
            return None
        try:
            return tuple(source.load(scope) for source in self._inputs)
        except SourceLost:
            return None
