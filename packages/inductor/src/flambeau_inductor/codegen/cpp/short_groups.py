"""Reduce groups of a few neighbouring columns side by side: group norm of channels-last images.

    outer i0 < 16, i1 < 16;  inner r0 < 4096, r1 < 4      b0[262144*i0 + 4*i1 + 64*r0 + r1]
    ->  outer i0 < 16, i1 < 64;  inner r0 < 4096          b0[262144*i0 + i1 + 64*r0]
        and each sum is joined over 4 neighbours along i1

The loop over r1 is shorter than a vector, and each line of memory is read for every group that has
a part of it. All groups are reduced as columns instead (`plan.Plan`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.cpp.plan import choose_plan
from flambeau_inductor.codegen.cpp.reductions import places
from flambeau_inductor.indexing.expressions import FloorDiv, free_names, linear_parts
from flambeau_inductor.ir import Axis, Compute, Constant, Load, Reduce, Store, index_of

if TYPE_CHECKING:
    from flambeau_inductor.codegen.cpp.reductions import Accumulator
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import LoopKernel, Statement

GROUPS = (2, 4, 8, 16)
"""Sizes of groups: they divide the columns that threads share out (`plan.COLUMN_UNIT`)."""

LEAST_COLUMNS = 16
"""Fewer columns are no vector."""

LEAST_ROWS = 32
"""With fewer rows, joining the columns of a group takes a good part of the time."""


def widen_short_groups(kernel: LoopKernel) -> tuple[LoopKernel, int]:
    """The kernel by columns, and how many neighbours are a group; the same kernel, and 1, if there
    are no such groups, or the kernel would not be reduced by columns.
    """
    unchanged = kernel, 1
    if len(kernel.inner) < 2 or not kernel.outer or kernel.shares != 0:
        return unchanged
    outer, short = kernel.outer[-1], kernel.inner[-1]
    sizes = [axis.size for axis in (outer, *kernel.inner)]
    if not all(isinstance(size, int) for size in sizes) or short.size not in GROUPS:
        return unchanged
    groups, *rows, size = sizes
    if groups * size < LEAST_COLUMNS or sympy.prod(rows) < LEAST_ROWS:
        return unchanged
    body: list[Statement] = []
    neighbours = 0
    for statement in kernel.body:
        index = index_of(statement)
        if index is None:
            if not isinstance(statement, (Constant, Compute)) and not (
                isinstance(statement, Reduce) and statement.kind in ("sum", "prod")
            ):
                return unchanged
            body.append(statement)
            continue
        moved = _by_columns(index, outer, short, size)
        if moved is None or not isinstance(statement, (Load, Store)):
            return unchanged
        if isinstance(statement, Store) and statement.mode:
            return unchanged
        neighbours += moved[1]
        body.append(replace(statement, index=moved[0]))
    if not neighbours:
        return unchanged
    columns = Axis(outer.symbol, groups * size)
    widened = replace(
        kernel, outer=(*kernel.outer[:-1], columns), inner=kernel.inner[:-1], body=tuple(body)
    )
    # Other accesses may be better along a row.
    return (widened, size) if choose_plan(widened).kind == "columns" else unchanged


def _by_columns(
    index: sympy.Expr, outer: Axis, short: Axis, size: int
) -> tuple[sympy.Expr, bool] | None:
    """An index where `outer` counts columns, and whether neighbours lie side by side; None if it
    is not linear.
    """
    names = outer.symbol.name, short.symbol.name
    if free_names(index).isdisjoint(names):
        return index, False
    parts = linear_parts(index, frozenset(names))
    if parts is None:
        return None
    steps, rest = parts
    group, step = (steps.get(name, sympy.S.Zero) for name in names)
    if sympy.expand(group - size * step) == 0:
        return rest + step * outer.symbol, step == 1
    number = FloorDiv(outer.symbol, sympy.Integer(size))
    return rest + group * number + step * (outer.symbol - size * number), False


def join_groups(writer: LoopWriter, accumulators: dict[str, Accumulator], group: int) -> None:
    """Join the columns of each group, and give all of them the result."""
    with (
        writer.block(f"for (int64_t c = 0; c < count; c += {group})"),
        writer.block(f"for (int64_t other = c + 1; other < c + {group}; ++other)"),
    ):
        for name, accumulator in accumulators.items():
            both = places("s", f"{name}_all", "[c]") | places("q", f"{name}_all", "[other]")
            for text in accumulator.merge:
                writer.line(text.format(**both))
    with writer.block("for (int64_t c = 0; c < count; ++c)"):
        for name, accumulator in accumulators.items():
            for _, suffix, _ in accumulator.state:
                array = f"{name}_all{suffix}"
                writer.line(f"{array}[c] = {array}[c / {group} * {group}];")
