"""Vector loops cut where conditions on the loop's own index change, as parts of a row that `cat`
puts side by side have them.

    for (i1 = 0; i1 < 128; ++i1) v3 = i1 < 64 ? b0[i1 + 64] : 0, v6 = i1 >= 64 ? b0[i1 - 64] : 0,
                                 v7 = i1 < 64 ? v3 : v6
becomes
    for (i1 = 0; i1 < 64; ++i1) v7 = b0[i1 + 64]
    for (i1 = 64; i1 < 128; ++i1) v7 = b0[i1 - 64]

Where no point satisfies all conditions, `peel` finds no range for them; the cuts must be numbers.
Conditions on an outer index are the same at all points of the loop, and choose between loops:

    for (i0 = 0; i0 < 8; ++i0)  for (i1 = 0; i1 < 56; ++i1) v3 = i0 < 4 ? b0[...] : 0, v6 = ...
becomes
    for (i0 = 0; i0 < 8; ++i0)
      if (i0 < 4)  for (i1 = 0; i1 < 56; ++i1) v7 = b0[...]
      else         for (i1 = 0; i1 < 56; ++i1) v7 = b1[...]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp.masks import Conditions, simplify_masks
from flambeau_inductor.codegen.cpp.plan import dependents, varies
from flambeau_inductor.ir import Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flambeau_inductor.codegen.cpp.masks import Range
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Body

MOST = 8
"""Rows are cut into so many segments at most: each is a loop of code."""

MOST_WAYS = 16
"""Conditions on outer indices choose between so many loops at most."""

SHORTEST = 16
"""Shorter segments gain nothing: a vector holds so many floats."""


@dataclass(frozen=True)
class Segment:
    """The points `low <= axis < high` (C++ expressions), and what the body comes to there."""

    low: str
    high: str
    body: Body


def cut(body: Body, vector: Axis) -> list[tuple[int, Body]] | None:
    """Where each segment of a row begins and its body; None if the conditions are no reason."""
    parts = _parts_along(body, vector, vector)
    if parts is None or vector.size < SHORTEST * len(parts):  # type: ignore[operator]
        return None
    return parts


def ways_along(
    body: Body, vector: Axis, outer: Sequence[Axis], most: int = MOST_WAYS
) -> list[tuple[str, Body]]:
    """The bodies that conditions on outer indices choose between, each behind the C++ condition for
    it where no earlier one holds, which is empty for the last. One body if there is no choice.
    """
    for number, axis in enumerate(outer):
        parts = _parts_along(body, vector, axis)
        if parts is None or len(parts) > most:
            continue
        ways: list[tuple[str, Body]] = []
        ends = [str(start) for start, _ in parts[1:]]
        for end, (_, part) in zip([*ends, ""], parts, strict=True):
            within = f"{axis.symbol.name} < {end}" if end else ""
            for condition, inner in ways_along(
                part, vector, outer[number + 1 :], most // len(parts)
            ):
                ways.append((" && ".join(filter(None, (within, condition))), inner))
        return ways
    return [("", body)]


def _parts_along(body: Body, vector: Axis, axis: Axis) -> list[tuple[int, Body]] | None:
    """Where along an axis each part begins, within which conditions do not change that loads along
    the vector axis depend on, and the body there; None if the conditions are no reason.
    """
    if not isinstance(axis.size, int):
        return None
    conditions = Conditions(body)
    moving = dependents(body, {axis.symbol.name})
    loaded = dependents(body, {vector.symbol.name})
    masked = {
        part
        for s in body
        if isinstance(s, Load) and varies(s, loaded)
        for part in conditions.parts.get(s.mask or "", ())
        if part in moving
    }
    if not any(conditions.exclude(a, b) for a in masked for b in masked if a < b):
        return None
    ranges = {part: conditions.range(part, axis) for part in conditions.margins if part in moving}
    known = {part: _bounds(one) for part, one in ranges.items()}
    numbers = {part: bounds for part, bounds in known.items() if bounds is not None}
    if not masked <= numbers.keys():
        return None
    size = axis.size
    edges = {edge for bounds in numbers.values() for edge in bounds if 0 < edge < size}
    starts = sorted({0, *edges})
    if len(starts) > MOST:
        return None
    return [(start, _at(body, conditions, numbers, start)) for start in starts]


def _bounds(one: Range | None) -> tuple[int, int] | None:
    """A range as numbers; None if it is not known, or not by numbers."""
    if one is None:
        return None
    begin, end = (edge is None or edge.is_Integer for edge in (one.begin, one.end))
    if not (begin and end):
        return None
    return int(one.begin or 0), 1 << 62 if one.end is None else int(one.end)


def _at(
    body: Body, conditions: Conditions, numbers: Mapping[str, tuple[int, int]], start: int
) -> Body:
    """The body in the segment that begins at `start`."""
    holds = {part: low <= start < high for part, (low, high) in numbers.items()}
    return simplify_masks(body, conditions.follow(holds))


def segments_of(
    writer: LoopWriter, body: Body, vector: Axis, begin: str, end: str
) -> list[Segment] | None:
    """The segments of a loop from `begin` to `end`, whose bounds are declared; None: leave it."""
    parts = cut(body, vector)
    if parts is None:
        return None
    starts = [start for start, _ in parts]
    if begin.isdigit() and end.isdigit():
        edges = [str(min(int(end), max(int(begin), start))) for start in starts]
    else:
        edges = [f"cut{number}" for number in range(len(starts))]
        for name, start in zip(edges, starts, strict=True):
            above = f"{start} < {end} ? {start} : {end}"
            writer.line(f"const int64_t {name} = {start} < {begin} ? {begin} : {above};")
    return [
        Segment(low, high, part)
        for low, high, (_, part) in zip(edges, [*edges[1:], end], parts, strict=True)
        if low != high
    ]
