"""Facts of operators, computed once each.

A table by operators computes their hashes, and torch does that in Python: passes that ask for each
call of a graph spend as much time on it as on their work. These tables are by identity.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Fact = TypeVar("_Fact")


def per_operator(function: Callable[[Any], _Fact]) -> Callable[[Any], _Fact]:
    """`function` of an operator, called once for each; its operators stay alive."""
    known: dict[int, _Fact] = {}
    alive: list[Any] = []

    @wraps(function)
    def fact(op: Any) -> _Fact:
        # Nearly all calls find it: a tuple around it, and a look-up that may fail, cost as much
        # again.
        try:
            return known[id(op)]
        except KeyError:
            pass
        alive.append(op)
        return known.setdefault(id(op), function(op))

    return fact
