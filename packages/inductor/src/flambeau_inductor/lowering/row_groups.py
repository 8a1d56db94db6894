"""Rows of one tensor that belong to groups: to which group a row belongs, by a search among the
places where groups end.

bounds [8, 8, 20, 32]: rows 0 to 7 belong to group 0, 8 to 19 to group 2; rows behind the last
bound count as the last group's

A loop nest searches for each row (`search_group`). A kernel of a matrix product recognises that
search (`group_of_row`), and takes tiles of rows of one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, defined_name
from flambeau_inductor.lowering.body_builder import BodyBuilder

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from flambeau_inductor.ir import Statement

PLACE = torch.int64


@dataclass(frozen=True)
class RowGroups:
    """`value` is the group of row `row`, of `count` that end where the buffer `bounds` says, from
    element `offset` on.
    """

    value: str
    row: sympy.Expr
    bounds: str
    count: int
    offset: sympy.Expr


def search_group(
    builder: BodyBuilder, bounds: str, count: int, row: sympy.Expr, offset: sympy.Expr
) -> str:
    """How many of `count` int32 bounds are not above a row: a binary search."""
    place = builder.index_value(row, PLACE)
    below = builder.constant(0, PLACE)
    last = builder.constant(count - 1, PLACE)
    step = 1 << (count.bit_length() - 1)
    while step:
        reached = builder.pointwise("add", below, builder.constant(step, PLACE))
        probe = builder.pointwise("sub", reached, builder.constant(1, PLACE))
        probe = builder.pointwise("minimum", probe, last)
        end = builder.load(bounds, symbol(probe) + offset, torch.int32)
        end = builder.cast(end, PLACE)
        ends_before = builder.pointwise("le", end, place)
        exists = builder.pointwise("le", reached, builder.constant(count, PLACE))
        taken = builder.pointwise("bitwise_and", ends_before, exists)
        below = builder.pointwise("where", taken, reached, below)
        step //= 2
    return builder.pointwise("minimum", below, last)


def group_of_row(name: str, defined: Mapping[str, Statement]) -> RowGroups | None:
    """The groups that a value searches among; None if it does anything else."""
    statement = defined[name]
    if not isinstance(statement, Compute) or statement.op != "minimum":
        return None
    last = defined[statement.args[1]]
    loads: set[tuple[str, sympy.Expr]] = set()
    rows: set[sympy.Expr] = set()
    for each in search_statements(name, defined):
        if isinstance(each, Load):
            loads.add((each.buffer, _rest(each.index, defined)))
        elif isinstance(each, IndexValue):
            rows.add(each.expr)
    if not isinstance(last, Constant) or len(loads) != 1 or len(rows) != 1:
        return None
    if not isinstance(last.value, int) or last.value < 0:
        return None
    ((bounds, offset),), (row,), count = loads, rows, int(last.value) + 1
    builder = BodyBuilder()
    expected = search_group(builder, bounds, count, row, offset)
    numbers: dict[Hashable, int] = {}
    same = _number(name, defined, {}, numbers) == _number(expected, builder.by_name, {}, numbers)
    return RowGroups(name, row, bounds, count, offset) if same else None


def search_statements(name: str, defined: Mapping[str, Statement]) -> list[Statement]:
    """The statements that a group of a row depends on."""
    seen: dict[str, Statement] = {}
    pending = [name]
    while pending:
        each = pending.pop()
        if each in defined and each not in seen:
            seen[each] = defined[each]
            pending += _operands(defined[each])
    return list(seen.values())


def _operands(statement: Statement) -> list[str]:
    """What a statement reads, the values in its index too."""
    if isinstance(statement, Load):
        mask = [statement.mask] if statement.mask else []
        return [*mask, *sorted(free_names(statement.index))]
    return list(statement.args) if isinstance(statement, Compute) else []


def _number(
    name: str, defined: Mapping[str, Statement], known: dict[str, int],
    numbers: dict[Hashable, int],
) -> int:  # fmt: skip
    """The same number for values that are computed alike."""
    pending = [name]
    while pending:
        each = pending[-1]
        statement = defined.get(each)
        missing = [] if statement is None else [o for o in _operands(statement) if o not in known]
        if missing:
            pending += missing
            continue
        pending.pop()
        key: tuple[Hashable, ...] = ("axis", each)
        if statement is not None:
            key = (type(statement).__name__, statement.dtype, _fields(statement, defined),  # type: ignore[union-attr]
                   tuple(known[o] for o in _operands(statement)))  # fmt: skip
        known[each] = numbers.setdefault(key, len(numbers))
    return known[name]


def _rest(index: sympy.Expr, defined: Mapping[str, Statement]) -> sympy.Expr:
    """An index without the values in it: they are added, if it is what a search reads."""
    return index.xreplace(
        {symbol(name): sympy.S.Zero for name in free_names(index) & defined.keys()}
    )


def _fields(statement: Statement, defined: Mapping[str, Statement]) -> Hashable:
    """What a statement says besides its operands."""
    match statement:
        case Constant(_, _, value):
            return value
        case IndexValue(_, _, expr):
            return expr
        case Load(_, _, buffer, index, mask):
            rest = _rest(index, defined)
            values = sympy.Add(*(symbol(each) for each in free_names(index) & defined.keys()))
            return buffer, rest, sympy.expand(index - rest - values), mask is None
        case Compute(_, _, op, _):
            return op
    return defined_name(statement)
