"""Values that are the same in all rows of a pointwise kernel, computed once: the columns that an
index selects.

    for (i0 ...) for (i1 ...) { v1 = b0[i1]; v7 = v1 < 0 ? v1 + 9 : v1; check v7; v8 = b1[.. v7] }
    ->
    int32_t v7_row[1024];
    for (i1 ...) { v1 = b0[i1]; v7 = ...; check v7; v7_row[i1] = v7; }
    if (bad) return bad;
    for (i0 ...) for (i1 ...) { v7 = v7_row[i1]; v8 = b1[.. v7] }

Nothing is read at an index that failed its check, so rows need no check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.plan import (
    COSTLY,
    dependents,
    statement_cost,
    static_product,
    varies,
)
from flambeau_inductor.ir import CheckIndex, Compute, IndexValue, Load, defined_name

if TYPE_CHECKING:
    from flambeau_inductor.codegen.cpp.plan import Plan
    from flambeau_inductor.ir import Body, LoopKernel

LONGEST = 4096
"""Longer rows of values do not stay in the first-level cache, nor on the stack."""

MOST = 2 * LONGEST
"""So many values of all kinds are kept, at most."""

LEAST_ROWS = 16
"""With fewer rows, little is saved."""


@dataclass(frozen=True)
class RowValues:
    """The statements that compute the values of a row, those of them that the `rest` of the body
    reads, and that rest, in which they are loaded from rows `name_row`. Those that are `narrow` are
    indices of 32 bits.
    """

    fixed: Body
    moving: Body
    names: tuple[str, ...]
    rest: Body
    narrow: frozenset[str]


def row_values(kernel: LoopKernel, plan: Plan) -> RowValues | None:
    """What is computed once for all rows; None if that saves little."""
    vector = plan.vector
    if plan.kind != "pointwise" or plan.serial or plan.tile is not None or vector is None:
        return None
    length, rows = static_product((vector,)), static_product(plan.lead)
    if length is None or length > LONGEST or rows is None or rows < LEAST_ROWS:
        return None
    written = {param.name for param in kernel.params if param.access != "read"}
    changing = dependents(kernel.body, {axis.symbol.name for axis in plan.lead})
    changing |= {s.name for s in kernel.body if isinstance(s, Load) and s.buffer in written}
    changing = dependents(kernel.body, changing)
    along = dependents(kernel.body, {vector.symbol.name})
    moving = tuple(
        s
        for s in kernel.body
        if isinstance(s, (CheckIndex, Compute, IndexValue, Load))
        and varies(s, along)
        and not varies(s, changing)
        and defined_name(s) not in changing
    )
    checks = [s for s in moving if isinstance(s, CheckIndex)]
    if any(check.mask is not None for check in checks):
        return None
    # Rows of bfloat16 are read by words, beside which there are no rows of floats. Loops are cut
    # and peeled by masks whose comparisons they compute; loops that check indices are neither.
    if not checks and (
        any(param.dtype is torch.bfloat16 for param in kernel.params)
        or any(isinstance(s, Load) and s.mask is not None for s in kernel.body)
    ):
        return None
    rest = tuple(s for s in kernel.body if s not in moving)
    names = tuple(
        name
        for s in moving
        if (name := defined_name(s)) is not None and any(varies(other, {name}) for other in rest)
    )
    cost = sum(statement_cost(s) for s in moving) + len(checks) - len(names)
    if cost < COSTLY or length * len(names) > MOST:
        return None
    still = [s for s in kernel.body if not varies(s, along | changing)]
    fixed = tuple(s for s in still if defined_name(s) not in {None, *changing})
    dtypes = {s.name: s.dtype for s in moving if not isinstance(s, CheckIndex)}
    loads = tuple(Load(name, dtypes[name], f"{name}_row", vector.symbol) for name in names)
    narrow = {s.value for s in checks if isinstance(s.size, int) and s.size < 1 << 31}
    return RowValues(fixed, moving, names, (*loads, *rest), frozenset(narrow))
