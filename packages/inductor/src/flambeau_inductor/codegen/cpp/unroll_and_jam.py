"""Unroll the loop outside a vector loop, and jam the copies into one vector loop: a window of three
then loads what it shares with its neighbour once.

    for (i0 ...)  for (i1 ...) b1[i0, i1] = b0[i0, i1] + b0[i0 + 1, i1]
    ->  for (i1 ...) {
          v0 = b0[i0, i1];  v1 = b0[i0 + 1, i1];  v2 = b0[i0 + 2, i1];  ...
          b1[i0, i1] = v0 + v1;  b1[i0 + 1, i1] = v1 + v2;  ...
        }

What is computed of shared loads alone (the activation before a convolution) is shared, too. The
statements of all copies alternate, so that few values are live at a time. The copies lie inside of
an image: conditions that do not vary along the vector loop are checked before it, for the first and
the last copy, between which comparisons of linear indices hold as well, or for each copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flambeau_inductor.codegen.cpp.cpp_types import HALVES
from flambeau_inductor.codegen.cpp.masks import Conditions
from flambeau_inductor.codegen.cpp.peel import peel, write_vector_loop
from flambeau_inductor.codegen.cpp.plan import (
    dependents,
    statement_cost,
    static_product,
    varies,
)
from flambeau_inductor.indexing.expressions import free_names, linear_parts
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, Store, index_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Body, Statement

COPIES = 4
"""Accumulators and a row of shared operands fit the 16 registers of AVX2."""

SHARED_LEAST = 0.3
"""The share of a loop's cost that must be saved: neighbours that are read together are more streams
of memory than the machine foresees, as measured for windows of maxima.
"""

MOST_STATEMENTS = 800
"""The statements of a jammed loop, at most: compiling more takes seconds."""


def unroll_and_jam(
    writer: LoopWriter, body: Body, vector: Axis, outer: Axis
) -> tuple[tuple[str, ...], Body] | None:
    """The conditions of the jammed loop, which do not vary along it, and its body; None if it
    gains nothing.
    """
    copies = copies_of(outer)
    if writer.checked or writer.streamed or writer.ordered or not _is_plain(body) or copies < 2:
        return None
    peeled = peel(body, vector)
    if peeled is not None and peeled.ranges:
        return None
    inside = body if peeled is None else peeled.inside
    moving = dependents(inside, {vector.symbol.name})
    if any(isinstance(s, Load) and s.mask is not None and varies(s, moving) for s in inside):
        return None
    jammed = jam(inside, outer, [outer.symbol + number for number in range(copies)])
    before, after = _cost_along(inside, vector) * copies, _cost_along(jammed, vector)
    if after > (1 - SHARED_LEAST) * before or len(jammed) > MOST_STATEMENTS:
        return None
    return (() if peeled is None else peeled.across), jammed


def copies_of(outer: Axis) -> int:
    """How many copies are jammed: no more than the axis has points."""
    size = static_product((outer,))
    return COPIES if size is None else max(1, min(COPIES, size))


def jam(body: Body, axis: Axis, points: Sequence[sympy.Expr]) -> Body:
    """The statements of a body at these points along an axis, equal ones once, stores last."""
    names: list[dict[str, str]] = [{} for _ in points]
    shared: dict[Statement, str] = {}
    jammed: list[Statement] = []
    stores: list[Statement] = []
    for statement in body:
        for number, renamed in enumerate(names):
            moved = _moved(statement, {axis.symbol: points[number]}, renamed)
            if isinstance(moved, Store):
                stores.append(moved)
                continue
            name = statement.name  # type: ignore[union-attr]
            key = replace(moved, name="")  # type: ignore[arg-type]
            if key not in shared:
                shared[key] = f"{name}_{number}"
                jammed.append(replace(moved, name=shared[key]))  # type: ignore[arg-type]
            renamed[name] = shared[key]
    return (*jammed, *stores)


def write_jammed(
    writer: LoopWriter, jammed: tuple[tuple[str, ...], Body], body: Body, vector: Axis, outer: Axis,
    count: str, end: str,
) -> None:  # fmt: skip
    """The jammed loop where there are enough points along the outer axis, counted by `count` up to
    `end` in this share of the work; it moves to the last of them. `jammed_here` tells whether it
    ran.
    """
    conditions, statements = jammed
    name, last = outer.symbol.name, copies_of(outer) - 1
    margins = Conditions(body).margins
    linear = all(linear_parts(margins[each], frozenset((name,))) for each in conditions)
    moving = dependents(body, {vector.symbol.name})
    before = [s for s in body if not varies(s, moving) and not isinstance(s, Store)]
    writer.line(
        f"bool jammed_here = {name} + {last} < {writer.size(outer)} && {count} + {last} < {end};"
    )
    if conditions:
        step = last if linear else 1
        head = f"int64_t ahead = 0; jammed_here && ahead <= {last}; ahead += {step}"
        with writer.block(f"for ({head})"):
            writer.printer.renamed[name] = f"({name} + ahead)"
            writer.statements(before)
            writer.line(f"jammed_here = {' && '.join(conditions)};")
    with writer.block("if (jammed_here)"):
        write_vector_loop(writer, vector, "0", writer.size(vector), statements, ())
        writer.line(f"{name} += {last};")
        if count != name:
            writer.line(f"{count} += {last};")


def _is_plain(body: Body) -> bool:
    """Whether each point stores what it computes of places that do not depend on data."""
    defined = {s.name for s in body if not isinstance(s, Store) and hasattr(s, "name")}
    for statement in body:
        index = index_of(statement)
        if index is not None and not free_names(index).isdisjoint(defined):
            return False
        match statement:
            case Constant() | IndexValue() | Compute():
                pass
            case Load(dtype=dtype) if dtype not in HALVES:
                pass
            case Store(mode="", mask=None):
                pass
            case _:
                return False
    return True


def _moved(
    statement: Statement, place: dict[sympy.Symbol, sympy.Expr], renamed: dict[str, str]
) -> Statement:
    """A statement at another point along an axis, on values of other names."""
    match statement:
        case IndexValue(expr=expr):
            return replace(statement, expr=_at(expr, place))
        case Load(index=index, mask=mask):
            mask = None if mask is None else renamed[mask]
            return replace(statement, index=_at(index, place), mask=mask)
        case Store(index=index, value=value):
            return replace(statement, index=_at(index, place), value=renamed[value])
        case Compute(args=args):
            return replace(statement, args=tuple([renamed[arg] for arg in args]))
    return statement


def _at(expr: Any, place: Any) -> Any:
    return expr.xreplace(place).expand()


def _cost_along(body: Body, vector: Axis) -> int:
    """The cost of what varies along a loop, in float adds."""
    moving = dependents(body, {vector.symbol.name})
    return sum(statement_cost(statement) for statement in body if varies(statement, moving))
