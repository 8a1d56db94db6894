"""The table of substitutes, filled by this package's other files.

A substitute takes (machine, args, kwargs).  Functions are found by identity: `SUBSTITUTES[id(function)]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

    Substitute = Callable[[Machine, tuple[Any, ...], dict[str, Any]], Any]

SUBSTITUTES: dict[int, Substitute] = {}
_KEPT_ALIVE: list[Any] = []  # what SUBSTITUTES is keyed by, so that ids stay theirs


def substitute_for(*functions: Any) -> Callable[[Substitute], Substitute]:
    """Decorator: the function stands in for these; a second substitute for one is an error."""

    def declare(substitute: Substitute) -> Substitute:
        for function in functions:
            if id(function) in SUBSTITUTES:
                raise ValueError(f"{function!r} has two substitutes")
            SUBSTITUTES[id(function)] = substitute
            _KEPT_ALIVE.append(function)
        return substitute

    return declare


def has_substitute(function: Any) -> bool:
    """Whether a substitute was declared for `function`."""
    return id(function) in SUBSTITUTES
