"""Between what symbolic floats lie, where that is known: random numbers, and what is computed from
them.

    f0 = random.random()        [0, 1)         2.45 + f0     [2.45, 3.45]        f0 < 0.0     never

An interval is closed, its ends computed in floats as the number itself is: rounding keeps order, so
they are exact bounds. What may be NaN or infinite has none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable

Interval: TypeAlias = tuple[float, float]

BELOW_ONE = math.nextafter(1.0, 0.0)
"""The greatest float that a draw from [0, 1) gives."""

_LARGEST_EXACT = 2**53


def range_of(number: Any) -> Interval | None:
    """The least and the greatest value that a number may have; None where that is not known."""
    if isinstance(number, (int, float)):
        return _finite(number, number)
    if isinstance(number, Expr):
        lower, upper = number.env.ranges.bounds(number)
        return None if lower is None or upper is None else _finite(lower, upper)
    if number.op == "symbol":
        known: Interval | None = number.env.float_ranges.get(number.symbol)
        return known
    rule = _RULES.get(number.op)
    if rule is None:
        return None
    ranges = [range_of(arg) for arg in number.args]
    return None if None in ranges else rule(*ranges)


def known_relation(op: str, a: Any, b: Any) -> bool | None:
    """Whether `a op b`, where the ranges of both say so."""
    left, right = range_of(a), range_of(b)
    if left is None or right is None:
        return None
    if op in (">", ">="):
        left, right, op = right, left, {">": "<", ">=": "<="}[op]
    if op == "<":
        return True if left[1] < right[0] else False if left[0] >= right[1] else None
    if op == "<=":
        return True if left[1] <= right[0] else False if left[0] > right[1] else None
    apart = left[1] < right[0] or right[1] < left[0]
    return (op == "!=") if apart else None


def _finite(lower: float, upper: float) -> Interval | None:
    if isinstance(lower, float) or isinstance(upper, float):
        return (lower, upper) if math.isfinite(lower) and math.isfinite(upper) else None
    if max(-lower, upper) > _LARGEST_EXACT:
        return None
    return float(lower), float(upper)


def _of_ends(function: Callable[[float, float], float]) -> Callable[..., Interval | None]:
    def rule(a: Interval, b: Interval) -> Interval | None:
        ends = [function(x, y) for x in a for y in b]
        return _finite(min(ends), max(ends))

    return rule


def _quotient(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0 <= b[1]:
        return None
    return _of_ends(lambda x, y: x / y)(a, b)


_RULES: dict[str, Callable[..., Interval | None]] = {
    "+": _of_ends(lambda x, y: x + y),
    "-": _of_ends(lambda x, y: x - y),
    "*": _of_ends(lambda x, y: x * y),
    "/": _quotient,
    "float": lambda a: a,
}
