"""What a body comes to where conditions on loop indices are known.

    v0 = index i1;  v1 = 1;  v2 = ge v0 v1;  v3 = load b0[64*i1 - 64] if v2;  v4 = where v2 v3 v9
    v2 true:   v3 = load b0[64*i1 - 64]                       (v4 is v3)
    v2 false:                                                 (v4 is v9)

Conditions are comparisons of index expressions, and conjunctions of those, as `pad` and `cat` make
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import FloorDiv, free_names, linear_parts
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, Store, operands
from flambeau_inductor.lowering.body_builder import drop_dead

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from flambeau_inductor.ir import Axis, Body, Statement


@dataclass(frozen=True)
class Range:
    """`begin <= axis < end`: expressions known outside the loop, or None for an open end."""

    begin: sympy.Expr | None
    end: sympy.Expr | None


class Conditions:
    """The conditions of a body: for each such bool value, comparisons that must all hold."""

    def __init__(self, body: Body) -> None:
        self.values: dict[str, Statement] = {
            statement.name: statement for statement in body if hasattr(statement, "name")
        }
        self.margins: dict[str, sympy.Expr] = {}
        """A comparison's name -> the index expression that is not negative where it holds."""
        self.parts: dict[str, frozenset[str]] = {}
        """A condition's name -> the names of its comparisons."""
        for statement in body:
            if isinstance(statement, Compute) and statement.dtype is torch.bool:
                self._note(statement)

    def _note(self, statement: Compute) -> None:
        if statement.op == "bitwise_and":
            parts = [self.parts.get(arg) for arg in statement.args]
            if None not in parts:
                self.parts[statement.name] = frozenset().union(*filter(None, parts))
        elif statement.op in ("ge", "lt"):
            left, right = (self._index(arg) for arg in statement.args)
            if left is not None and right is not None:
                margin = left - right if statement.op == "ge" else right - left - 1
                self.margins[statement.name] = sympy.expand(margin)
                self.parts[statement.name] = frozenset((statement.name,))

    def _index(self, name: str) -> sympy.Expr | None:
        match self.values.get(name):
            case IndexValue(dtype=torch.int64, expr=expr) if free_names(expr).isdisjoint(
                self.values
            ):
                return expr
            case Constant(dtype=torch.int64, value=value):
                return sympy.Integer(int(value))
        return None

    def exclude(self, first: str, second: str) -> bool:
        """Whether two comparisons certainly never hold together."""
        total = sympy.expand(self.margins[first] + self.margins[second])
        return total.is_Integer and int(total) < 0

    def range(self, comparison: str, axis: Axis) -> Range | None:
        """Where along an axis a comparison holds; None if no loop can walk that range."""
        name = axis.symbol.name
        parts = linear_parts(self.margins[comparison], frozenset((name,)))
        if parts is None:
            return None
        step, rest = parts[0].get(name, sympy.S.Zero), parts[1]
        if not step.is_Integer or step == 0:
            return None
        count = abs(step)
        if rest.is_Integer:
            return Range(-(rest // count), None) if step > 0 else Range(None, rest // count + 1)
        # C's division is right wherever a quotient is above zero, and an end below zero is as good
        # as zero.
        if step > 0:
            return Range(_divide(sympy.expand(count - 1 - rest), count), None)
        return Range(None, _divide(sympy.expand(rest + count), count))

    def decided(self) -> dict[str, bool]:
        """The conditions that hold, or fail, at all points."""
        return self.follow(
            {part: int(margin) >= 0 for part, margin in self.margins.items() if margin.is_Integer}
        )

    def follow(self, holds: Mapping[str, bool]) -> dict[str, bool]:
        """What is known of all conditions where these comparisons hold, or fail."""
        known = dict(holds)
        for name, parts in self.parts.items():
            if any(holds.get(part) is False for part in parts):
                known[name] = False
            elif all(holds.get(part) for part in parts):
                known[name] = True
        return known

    def all_of(self, comparisons: Collection[str]) -> set[str]:
        """The conditions that hold where these comparisons do."""
        return {name for name, parts in self.parts.items() if parts <= set(comparisons)}


def _divide(a: sympy.Expr, b: sympy.Integer) -> sympy.Expr:
    return a if b == 1 else FloorDiv(a, b, evaluate=False)


def simplify_masks(body: Body, known: Mapping[str, bool]) -> Body:
    """The body for known conditions: without selections, masks and unneeded statements."""
    renamed: dict[str, str] = {}
    result: list[Statement] = []
    for statement in body:
        statement = rename_operands(statement, renamed)
        name = getattr(statement, "name", None)
        match statement:
            case Load(dtype=dtype, mask=str(mask)) if mask in known:
                if known[mask]:
                    result.append(replace(statement, mask=None))
                else:
                    result.append(Constant(statement.name, dtype, 0))
            case Compute(op="where", args=(condition, a, b)) if condition in known:
                renamed[statement.name] = a if known[condition] else b
            case Compute(op="bitwise_and", args=(a, b)) if (
                known.get(a) or known.get(b)
            ) and name not in known:
                renamed[statement.name] = b if known.get(a) else a
            case Compute() if name in known:
                result.append(Constant(statement.name, torch.bool, known[statement.name]))
            case _:
                result.append(statement)
    return drop_dead(result)


def rename_operands(statement: Statement, renamed: Mapping[str, str]) -> Statement:
    """A statement that reads other values in place of those renamed."""
    if renamed.keys().isdisjoint(operands(statement)):
        return statement
    match statement:
        case Compute(args=args):
            return replace(statement, args=tuple(renamed.get(arg, arg) for arg in args))
        case Load(mask=str(mask)):
            return replace(statement, mask=renamed[mask])
        case Store(value=value, mask=mask):
            mask = renamed.get(mask, mask) if mask else None
            return replace(statement, value=renamed.get(value, value), mask=mask)
    raise TypeError(f"a renamed operand in {statement!r}")
