"""Vector loops, peeled where loads are masked: the loop over the inside of an image has no
conditions left.

A window of three over a padded row, in a loop over i1 that GCC would not vectorise:

    for (i1 = 0; i1 < 56; ++i1) v3 = i0 >= 1 && i1 >= 1 ? b0[...] : 0, v4 = i0 >= 1 && i1 >= 1 ? v3
    : -inf, ...

Conditions on the loop's own index bound the range in which they hold; the few points outside of it
keep the body as it was:

    for (i1 = 0; i1 < 1; ++i1) ...

Conditions on outer indices are the same at all points of the loop, and choose between loops:

    if (i0 >= 1)  for (i1 = 1; i1 < 56; ++i1) v3 = b0[...], ...
    else          fill row4 with -inf;  for (i1 = 1; i1 < 56; ++i1) v4 = row4[i1], ...

Where zeros are selected, and rows are contiguous, the border reads rows of zeros instead of those
that do not exist:

    else          v3_row = i0 >= 1 ? b0 + ... : zeros;
                  for (i1 = 1; i1 < 56; ++i1) v4 = v3_row[i1], ...
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.cpp.bfloat16_words import write_loop
from flambeau_inductor.codegen.cpp.cpp_types import storage_type
from flambeau_inductor.codegen.cpp.float16_rows import (
    converted,
    is_short,
    on_rows,
    write_chunks,
)
from flambeau_inductor.codegen.cpp.masks import Conditions, rename_operands, simplify_masks
from flambeau_inductor.codegen.cpp.plan import dependents, is_scatter, stride_along, varies
from flambeau_inductor.codegen.cpp.streaming_stores import write_lines
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Constant,
    Load,
    Store,
    defined_name,
    index_of,
    operands,
)
from flambeau_inductor.lowering.body_builder import drop_dead

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flambeau_inductor.codegen.cpp.masks import Range
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Body

STAGED_ROW = 256
"""Masked values of the border are staged by so many points."""


@dataclass(frozen=True)
class Staged:
    """The selections by one condition: stored to rows of scratch memory, which a body loads."""

    condition: str
    true: Body
    false: Body


@dataclass(frozen=True)
class Peeled:
    """A vector loop's body by what is known.

    Within all of `ranges`, `inside` runs if the conditions `across` hold, which do not vary along
    the loop, and `border` if not, after `staged` made the rows that it reads; `rows` are those.
    `zeroed` are loads of the border that read zeros where their masks do not hold. Outside of the
    ranges, `outside` runs.
    """

    ranges: tuple[Range, ...]
    outside: Body
    across: tuple[str, ...]
    inside: Body
    border: Body
    staged: tuple[Staged, ...]
    rows: tuple[Compute, ...]
    zeroed: tuple[Load, ...] = ()


def peel(body: Body, vector: Axis) -> Peeled | None:
    """How to peel the loop of a body along an axis; None if it gains nothing or indexes vary."""
    conditions = Conditions(body)
    if any(
        not free_names(index).isdisjoint(conditions.values)
        for index in map(index_of, body)
        if index is not None
    ):
        return None
    moving = dependents(body, {vector.symbol.name})
    masks = _masks(body, moving, conditions)
    excluded = _mutually_exclusive(masks, conditions)
    ranges: dict[str, Range] = {}
    kept = []
    for mask in masks:
        result = {
            part: conditions.range(part, vector)
            for part in conditions.parts[mask]
            if part in moving
        }
        if None in result.values() or not excluded.isdisjoint(conditions.parts[mask]):
            continue
        kept.append(mask)
        ranges.update(result)  # type: ignore[arg-type]
    if not kept:
        return None
    centre = (
        simplify_masks(body, dict.fromkeys(conditions.all_of(ranges), True)) if ranges else body
    )
    only_mask = len(kept) == 1 and conditions.parts[kept[0]] <= ranges.keys()
    outside = simplify_masks(body, {kept[0]: False}) if only_mask else body
    wanted = {part for mask in kept for part in conditions.parts[mask]} - ranges.keys()
    across = tuple(sorted(wanted, key=list(conditions.values).index))
    zeroed = _zeroed(centre, vector, moving, wanted)
    if zeroed:
        holding = Conditions(centre).all_of(wanted)
        inside = simplify_masks(centre, dict.fromkeys(holding, True))
        border = _without_selections(centre, {load.name for load in zeroed})
        return Peeled(tuple(ranges.values()), outside, across, inside, border, (), (), zeroed)
    inside, border, staged, rows = _across(centre, vector, moving, wanted)
    return Peeled(tuple(ranges.values()), outside, across, inside, border, staged, rows)


def _masks(body: Body, moving: set[str], conditions: Conditions) -> list[str]:
    """The conditions under which loads that vary along the loop exist."""
    loads = [s for s in body if isinstance(s, Load) and varies(s, moving)]
    return list(dict.fromkeys(s.mask for s in loads if s.mask in conditions.parts))  # type: ignore[misc]


def _zeroed(body: Body, vector: Axis, moving: set[str], wanted: set[str]) -> tuple[Load, ...]:
    """The masked loads that vary along the loop, if there are several masks, none of them varies
    along it, all loads are contiguous, and zero is selected instead of each.
    """
    loads = {s.name: s for s in body if isinstance(s, Load) and s.mask and varies(s, moving)}
    holding = Conditions(body).all_of(wanted) if wanted else set()
    if len({load.mask for load in loads.values()}) < 2 or any(
        load.mask not in holding
        or load.dtype is torch.bool
        or stride_along(load.index, vector) is not sympy.S.One
        for load in loads.values()
    ):
        return ()
    zeros = {s.name for s in body if isinstance(s, Constant) and s.value == 0}
    for statement in body:
        for name in loads.keys() & set(operands(statement)):
            match statement:
                case Compute(op="where", args=(mask, value, other)) if (
                    value == name and mask == loads[name].mask and other in zeros
                ):
                    pass
                case _:
                    return ()
    return tuple(loads.values())


def _without_selections(body: Body, loads: Collection[str]) -> Body:
    """The body with loads that read zeros in place of what selects zeros instead of them."""
    selections = {
        s.name: s.args[1]
        for s in body
        if isinstance(s, Compute) and s.op == "where" and s.args[1] in loads
    }
    return drop_dead(
        [
            rename_operands(replace(s, mask=None) if defined_name(s) in loads else s, selections)  # type: ignore[arg-type]
            for s in body
            if defined_name(s) not in selections
        ]
    )


def _mutually_exclusive(masks: Sequence[str], conditions: Conditions) -> set[str]:
    """Comparisons that never hold together (`cat` has such): no point is inside of all."""
    parts = list(dict.fromkeys(part for mask in masks for part in sorted(conditions.parts[mask])))
    return {
        one
        for number, first in enumerate(parts)
        for second in parts[:number]
        if conditions.exclude(first, second)
        for one in (first, second)
    }


def _across(
    body: Body, vector: Axis, moving: set[str], wanted: set[str]
) -> tuple[Body, Body, tuple[Staged, ...], tuple[Compute, ...]]:
    """Peeled's inside, border, staged and rows, of a body without conditions along the loop."""
    if not wanted:
        return body, (), (), ()
    conditions = Conditions(body)
    holding = conditions.all_of(wanted)
    inside = simplify_masks(body, dict.fromkeys(holding, True))
    masks = [mask for mask in _masks(body, moving, conditions) if mask in holding]
    if len(masks) == 1:
        return inside, simplify_masks(body, {masks[0]: False}), (), ()
    rows = tuple(
        s for s in body if isinstance(s, Compute) and s.op == "where" and s.args[0] in masks
    )
    border, staged = _stage(body, vector, rows, masks, conditions)
    if any(_masks(part, moving, Conditions(part)) for part in (border, *(s.true for s in staged))):
        return inside, body, (), ()  # a masked load is not just selected: leave it as it is
    return inside, border, staged, rows


def _stage(
    body: Body, vector: Axis, rows: Sequence[Compute], masks: Sequence[str], conditions: Conditions
) -> tuple[Body, tuple[Staged, ...]]:
    """The body with selections loaded from rows, and what stores them there."""
    place = vector.symbol - symbol("strip")
    loads = {row: Load(row.name, row.dtype, f"{row.name}_row", place) for row in rows}
    border = simplify_masks(
        tuple(loads.get(s, s) if isinstance(s, Compute) else s for s in body), {}
    )
    values = tuple(s for s in body if not isinstance(s, Store))
    staged = []
    for mask in masks:
        stores = tuple(
            Store(f"{row.name}_row", place, row.name) for row in rows if row.args[0] == mask
        )
        true = simplify_masks(
            (*values, *stores), dict.fromkeys(conditions.all_of(conditions.parts[mask]), True)
        )
        staged.append(Staged(mask, true, simplify_masks((*values, *stores), {mask: False})))
    return border, tuple(staged)


def write_vector_loop(
    writer: LoopWriter, vector: Axis, begin: str, end: str, body: Body, known: Collection[str]
) -> None:
    """One vector loop, after a block with what does not vary along it and is not `known`."""
    moving = dependents(body, {vector.symbol.name})
    before = [
        s
        for s in body
        if not varies(s, moving) and defined_name(s) not in known and not is_scatter(s)
    ]
    inside = [s for s in body if varies(s, moving) or is_scatter(s)]
    with writer.block("") if before else nullcontext():
        writer.statements(before)
        rows = None
        if not (writer.staged or writer.ordered):
            dtypes = converted(begin, end, in_words=True)
            rows = on_rows(inside, vector, (torch.float16,) if writer.streamed else dtypes)
        if rows is not None:
            write_chunks(writer, rows, vector, begin, end)
            return
        if not is_short(begin, end) and write_lines(writer, inside, vector, begin, end):
            return
        clause = ("bad", "|") if any(isinstance(s, CheckIndex) for s in inside) else None
        write_loop(writer, inside, vector, begin, end, clause)


def write_peeled(
    writer: LoopWriter, peeled: Peeled, vector: Axis, begin: str, end: str, known: set[str]
) -> None:
    """The loops; `known` names the values defined before them."""
    low, high = begin, end
    if peeled.ranges:
        low, high = _write_ends(writer, peeled.ranges, begin, end)
        _write_outside(writer, peeled.outside, vector, (begin, low, high, end), known)
    if not peeled.across:
        write_vector_loop(writer, vector, low, high, peeled.inside, known)
        return
    with writer.block(f"if ({' && '.join(peeled.across)})"):
        write_vector_loop(writer, vector, low, high, peeled.inside, known)
    with writer.block("else"):
        if peeled.zeroed:
            _write_zeroed(writer, peeled, vector, (low, high), known)
            return
        if not peeled.staged:
            write_vector_loop(writer, vector, low, high, peeled.border, known)
            return
        for row in peeled.rows:
            writer.line(
                f"{storage_type(row.dtype)} {row.name}_row[{STAGED_ROW}] "
                f"__attribute__((aligned(64)));"
            )
        with writer.block(f"for (int64_t strip = {low}; strip < {high}; strip += {STAGED_ROW})"):
            writer.line(
                f"const int64_t strip_end = strip + {STAGED_ROW} < {high} "
                f"? strip + {STAGED_ROW} : {high};"
            )
            for staged in peeled.staged:
                with writer.block(f"if ({staged.condition})"):
                    write_vector_loop(writer, vector, "strip", "strip_end", staged.true, known)
                with writer.block("else"):
                    write_vector_loop(writer, vector, "strip", "strip_end", staged.false, known)
            write_vector_loop(writer, vector, "strip", "strip_end", peeled.border, known)


def _write_zeroed(
    writer: LoopWriter, peeled: Peeled, vector: Axis, ends: tuple[str, str], known: set[str]
) -> None:
    """The border, in strips as long as a row of zeros."""
    low, high = ends
    dtypes = {storage_type(load.dtype): None for load in peeled.zeroed}
    for ctype in dtypes:
        writer.line(f"static const {ctype} {ctype}_zeros[{STAGED_ROW}] = {{}};")
    with writer.block(f"for (int64_t strip = {low}; strip < {high}; strip += {STAGED_ROW})"):
        writer.line(
            f"const int64_t strip_end = strip + {STAGED_ROW} < {high} "
            f"? strip + {STAGED_ROW} : {high};"
        )
        for load in peeled.zeroed:
            ctype = storage_type(load.dtype)
            index = load.index.xreplace({vector.symbol: symbol("strip")})
            writer.line(
                f"const {ctype} *const {load.name}_row = {load.mask} "
                f"? {load.buffer} + ({writer.printer.index_text(index)}) : {ctype}_zeros;"
            )
        before = writer.staged
        place = f"[{vector.symbol.name} - strip]"
        writer.staged = before | {load.name: f"{load.name}_row{place}" for load in peeled.zeroed}
        write_vector_loop(writer, vector, "strip", "strip_end", peeled.border, known)
        writer.staged = before


def _write_ends(
    writer: LoopWriter, ranges: Sequence[Range], begin: str, end: str
) -> tuple[str, str]:
    """Where the common range of the conditions begins and ends: begin <= low <= high <= end."""
    begins = [r.begin for r in ranges if r.begin is not None]
    ends = [r.end for r in ranges if r.end is not None]
    if begin.isdigit() and end.isdigit() and all(bound.is_Integer for bound in begins + ends):
        low = min(int(end), max(int(begin), *map(int, begins), 0))
        return str(low), str(max(low, min(int(end), *map(int, ends), int(end))))
    writer.line(f"int64_t low = {begin}, high = {end};")
    for bound in begins:
        text = writer.printer.index_text(bound)
        writer.line(f"low = low < {text} ? {text} : low;")
    for bound in ends:
        text = writer.printer.index_text(bound)
        writer.line(f"high = high > {text} ? {text} : high;")
    writer.line(f"low = low < {end} ? low : {end}, high = high < low ? low : high;")
    return "low", "high"


def _write_outside(
    writer: LoopWriter, body: Body, vector: Axis, ends: tuple[str, str, str, str], known: set[str]
) -> None:
    """The points before and behind the range."""
    begin, low, high, end = ends
    if begin == low or high == end:
        sides = (low, begin) if high == end else (end, high)
        if sides[0] != sides[1]:
            write_vector_loop(writer, vector, sides[1], sides[0], body, known)
        return
    with writer.loop("side", "0", "2"):
        writer.line(f"const int64_t from = side ? {high} : {begin}, to = side ? {end} : {low};")
        write_vector_loop(writer, vector, "from", "to", body, known)
