"""Rows of a table that an index names, asked for ahead: the machine does not foresee their places.

    for (i0 ...) {
      if (i0 + 2 < 8192) {
        v0 = b0[i0 + 2];
        for (line = 0; line < 768; line += 16) prefetch(b1 + 768 * v0 + line)
      }
      v0 = b0[i0];
      for (i1 ...) b2[i0, i1] = b1[768 * v0 + i1]
    }

Rows that are added to are asked for, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.cpp.plan import dependents, hinted_size, static_product, stride_along
from flambeau_inductor.codegen.cpp.tiles import LINE
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import Axis, Load, Store, defined_name, index_of, operands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Statement

AHEAD = 2
"""So many points before a row is accessed it is asked for, as measured."""

SHORTEST = 256
"""Of rows of fewer bytes, the machine looks for several at once."""

SPREAD_LEAST = 1 << 20
"""Rows that are likely within fewer bytes are in the second-level cache."""

LONGEST = 8192
"""So many bytes of a row are asked for, at most: behind them, the machine follows."""


def fetch_gathered_rows(writer: LoopWriter, vector: Axis, outer: Axis) -> None:
    """Ask for the rows that the point AHEAD along the axis around the vector loop accesses."""
    kernel = writer.kernel
    along, across = (dependents(kernel.body, {axis.symbol.name}) for axis in (vector, outer))
    values = {name: s for s in kernel.body if (name := defined_name(s)) is not None}
    dtypes = {param.name: param.dtype for param in kernel.params}
    rows: dict[tuple[str, sympy.Expr], Load | Store] = {}
    for s in kernel.body:
        if not isinstance(s, Load | Store) or s.buffer not in dtypes:
            continue
        if stride_along(s.index, vector) is not sympy.S.One:
            continue
        names, size = free_names(s.index) & values.keys(), dtypes[s.buffer].itemsize
        if not names & across or names & along or hinted_size(vector, kernel) * size < SHORTEST:
            continue
        if _spread(writer, s.index) * size >= SPREAD_LEAST:
            rows[s.buffer, s.index] = s
    if not rows:
        return
    name = outer.symbol.name
    with writer.block(f"if ({name} + {AHEAD} < {writer.size(outer)})"):
        writer.printer.renamed[name] = f"({name} + {AHEAD})"
        needed = _needed({name for _, index in rows for name in free_names(index)}, values)
        writer.statements(s for s in kernel.body if defined_name(s) in needed)
        for (buffer, index), s in rows.items():
            writer.make_safe(index)
            writer.flush()
            step, most = (count // dtypes[buffer].itemsize for count in (LINE, LONGEST))
            length, static = writer.size(vector), static_product((vector,))
            end = f"({length} < {most} ? {length} : {most})"
            if static is not None:
                end = str(min(static, most))
            row = writer.printer.index_text(index.xreplace({vector.symbol: symbol("line")}))
            with writer.block(f"for (int64_t line = 0; line < {end}; line += {step})"):
                writer.line(
                    f"__builtin_prefetch({buffer} + {row}, {int(isinstance(s, Store))}, 2);"
                )


def _spread(writer: LoopWriter, index: sympy.Expr) -> int:
    """Within how many elements an access likely stays: those of the points, or of the table if an
    index into it is checked.
    """
    kernel = writer.kernel
    spread = math.prod(hinted_size(axis, kernel) for axis in kernel.outer)
    for name in free_names(index) & writer.checks.keys():
        axis = Axis(symbol(name), writer.checks[name].size)
        stride = stride_along(index, axis)
        if stride is not None and stride.is_Integer:
            spread = min(spread, hinted_size(axis, kernel) * abs(int(stride)))
    return spread


def _needed(names: Iterable[str], values: Mapping[str, Statement]) -> set[str]:
    """The values that these names depend on, and they themselves."""
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in values and name not in needed:
            needed.add(name)
            statement = values[name]
            index = index_of(statement)
            pending += operands(statement)
            pending += free_names(index) if index is not None else ()
    return needed
