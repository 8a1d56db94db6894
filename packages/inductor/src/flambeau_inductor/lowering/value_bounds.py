"""Bounds of the integers that a value of a graph can hold, from the primitives that compute it.

    i = minimum(cast(floor(mul(cast(iota(8)), 0.5))), 3)  ->  0 .. 3

An index with bounds inside its dim is read without a check, and is not wrapped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size

MAX_DEPTH = 40
"""Values behind longer chains have no bounds."""

EXACT = 2**24
"""Integers below it are exact in all float dtypes that are computed in."""


SLACK = 2.0**-20
"""Bounds of floats are widened by this much: kernels round, and fuse products with sums."""


@dataclass(frozen=True)
class Bounds:
    """Least and greatest value; None where none is known. Both are known of a float, which is then
    no NaN, or none.
    """

    low: Any
    high: Any


UNKNOWN = Bounds(None, None)


def lies_inside(value: Value, size: Size) -> bool:
    """Whether every element is certainly in [0, size)."""
    bounds = bounds_of(value)
    if bounds.low is None or bounds.high is None:
        return False
    return _known_le(0, bounds.low) and _known_le(bounds.high, size - 1)


def bounds_of(value: Any, depth: int = 0) -> Bounds:
    """The bounds of a Value, or of a number."""
    if not isinstance(value, Value):
        known = isinstance(value, (int, float, Expr)) and value == value
        return Bounds(value, value) if known else UNKNOWN
    node = value.producer
    if node is None or not isinstance(node.op, Prim) or depth > MAX_DEPTH:
        return UNKNOWN
    if node.op.kind is Kind.VIEW:
        return bounds_of(node.args[0], depth + 1)
    rule = _RULES.get(node.op.name)
    bounds = UNKNOWN if rule is None else rule(node, depth + 1)
    return _widened(bounds) if value.spec.dtype.is_floating_point else bounds


def _widened(bounds: Bounds) -> Bounds:
    low, high = bounds.low, bounds.high
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return UNKNOWN
    return Bounds(low - abs(low) * SLACK, high + abs(high) * SLACK)


def _known_le(a: Any, b: Any) -> bool:
    if isinstance(a, Expr) or isinstance(b, Expr):
        both_whole = not isinstance(a, float) and not isinstance(b, float)
        return both_whole and sizes.known_le(a, b)
    return bool(a <= b)


def _least(a: Any, b: Any) -> Any:
    """The lesser of two bounds, None if that is not known."""
    if a is None or b is None:
        return None
    return a if _known_le(a, b) else b if _known_le(b, a) else None


def _greatest(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return None
    return b if _known_le(a, b) else a if _known_le(b, a) else None


def _iota(node: Node, depth: int) -> Bounds:
    length, start, step, *_ = node.args
    if any(isinstance(item, Expr) for item in (start, step)):
        return UNKNOWN
    if isinstance(length, Expr):
        return Bounds(start, None) if step >= 0 else Bounds(None, start)
    ends = (start, start + max(length - 1, 0) * step)
    return Bounds(min(ends), max(ends))


def _minimum(node: Node, depth: int) -> Bounds:
    a, b = (bounds_of(arg, depth) for arg in node.args)
    highs = [bound for bound in (a.high, b.high) if bound is not None]
    high = highs[0] if len(highs) == 1 else _least(*highs) if highs else None
    if high is None and highs:  # either bounds it; sizes say more about indices than numbers do
        high = next((bound for bound in highs if isinstance(bound, Expr)), highs[0])
    return Bounds(_least(a.low, b.low), high)


def _maximum(node: Node, depth: int) -> Bounds:
    a, b = (bounds_of(arg, depth) for arg in node.args)
    lows = [bound for bound in (a.low, b.low) if bound is not None]
    low = lows[0] if len(lows) == 1 else _greatest(*lows) if lows else None
    return Bounds(low if low is not None or not lows else lows[0], _greatest(a.high, b.high))


def _add(node: Node, depth: int) -> Bounds:
    a, b = (bounds_of(arg, depth) for arg in node.args)
    return Bounds(_plus(a.low, b.low), _plus(a.high, b.high))


def _sub(node: Node, depth: int) -> Bounds:
    a, b = (bounds_of(arg, depth) for arg in node.args)
    return Bounds(_minus(a.low, b.high), _minus(a.high, b.low))


def _mixed(a: Any, b: Any) -> bool:
    """Whether two bounds cannot be computed with: unknown, or a size and a float."""
    if a is None or b is None:
        return True
    return any(isinstance(x, Expr) and isinstance(y, float) for x, y in ((a, b), (b, a)))


def _plus(a: Any, b: Any) -> Any:
    return None if _mixed(a, b) else a + b


def _minus(a: Any, b: Any) -> Any:
    return None if _mixed(a, b) else a - b


def _mul(node: Node, depth: int) -> Bounds:
    a, b = (bounds_of(arg, depth) for arg in node.args)
    ends = (a.low, a.high, b.low, b.high)
    if all(isinstance(end, (int, float)) for end in ends):
        products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return Bounds(min(products), max(products))
    nonnegative = all(isinstance(low, (int, float)) and low >= 0 for low in (a.low, b.low))
    return Bounds(0, None) if nonnegative else UNKNOWN


def _floor(node: Node, depth: int) -> Bounds:
    bounds = bounds_of(node.args[0], depth)
    return Bounds(*[math.floor(b) if isinstance(b, float) and math.isfinite(b) else b
                    for b in (bounds.low, bounds.high)])  # fmt: skip


def _cast(node: Node, depth: int) -> Bounds:
    """Rounding keeps an order; integers that floats do not hold exactly are not followed."""
    x, dtype = node.args
    bounds = bounds_of(x, depth)
    ends = (bounds.low, bounds.high)
    if x.spec.dtype is dtype or (dtype is torch.int64 and not x.spec.dtype.is_floating_point):
        return bounds
    if not all(isinstance(end, (int, float)) and abs(end) < EXACT for end in ends):
        return UNKNOWN
    if dtype.is_floating_point:
        return bounds
    if dtype not in (torch.int64, torch.int32):
        return UNKNOWN
    return Bounds(*map(math.trunc, ends))


def _where(node: Node, depth: int) -> Bounds:
    a, b = (bounds_of(arg, depth) for arg in node.args[1:])
    return Bounds(_least(a.low, b.low), _greatest(a.high, b.high))


_RULES = {
    "iota": _iota, "minimum": _minimum, "maximum": _maximum, "add": _add, "sub": _sub,
    "mul": _mul, "floor": _floor, "cast": _cast, "where": _where,
    "full": lambda node, depth: bounds_of(node.args[1]),
    "clone": lambda node, depth: bounds_of(node.args[0], depth),
}  # fmt: skip
