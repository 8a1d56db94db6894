"""Compute integers that fit 32 bits in 32 bits, as a GPU does faster.

    v0 = index i2 :i64; v1 = index r0 :i64; v2 = sub v1 v0; v3 = cast v2 -> f32
    ->  the same in i32, where the axes are known to be short

Positions are int64 in torch. An index expression keeps the int64 form of a value that it names.
In 64 bits ptxas 12.8 gets `a // 19 - b // 19` wrong where b // 19 is 0 and both are short (it takes
a carry that does not occur for granted).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import CheckIndex, Compute, Constant, IndexValue, Load, Store, index_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flambeau_inductor.ir import LoopKernel, Statement

LIMIT = 2**31
Interval = tuple[int, int]
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def narrow_integers(
    statements: Sequence[Statement], ranges: Mapping[str, int]
) -> tuple[Statement, ...]:
    """The statements, values under their names; `ranges`: the bound of each axis that has one."""
    return tuple(_Narrower(ranges).run(statements))


def narrowed(kernel: LoopKernel) -> LoopKernel:
    """The kernel with positions along axes of known sizes in 32 bits."""
    if not any(isinstance(each, IndexValue) and each.dtype is torch.int64 for each in kernel.body):
        return kernel
    axes = (*kernel.outer, *kernel.inner)
    ranges = {axis.symbol.name: axis.size for axis in axes if isinstance(axis.size, int)}
    return replace(kernel, body=narrow_integers(kernel.body, ranges))


class _Narrower:
    def __init__(self, ranges: Mapping[str, int]) -> None:
        self.intervals: dict[str, Interval] = {name: (0, n - 1) for name, n in ranges.items()}
        """Of axes, and of values that are computed in 32 bits."""
        self.narrow: set[str] = set()
        self.dtypes: dict[str, torch.dtype] = {}
        self.wide: dict[str, str] = {}
        self.result: list[Statement] = []

    def run(self, statements: Sequence[Statement]) -> list[Statement]:
        for statement in statements:
            self.result.append(self.step(statement))
        return self.result

    def step(self, statement: Statement) -> Statement:
        statement = self.widen_index(statement)
        if not isinstance(statement, (Store, CheckIndex)):
            self.dtypes[statement.name] = statement.dtype
        match statement:
            case Constant(name, torch.int64, value):
                return self.shorten(statement, name, (int(value), int(value)))
            case IndexValue(name, torch.int64, expr):
                return self.shorten(statement, name, self.bounds(expr))
            case Compute(name, dtype, "cast", (x,)) if dtype is torch.int64:
                if self.dtypes[x] is torch.int32:
                    return self.shorten(statement, name, (-LIMIT, LIMIT - 1))
                return statement
            case Compute(_, _, "cast", _):
                return statement
            case Compute(name, dtype, op, args):
                integers = [x for x in args if self.dtypes[x] is torch.int64]
                if not integers:
                    return statement
                if all(x in self.narrow for x in integers):
                    if op in _COMPARISONS:
                        return statement
                    interval = self.computed(op, [self.intervals[x] for x in integers])
                    if dtype is torch.int64 and _fits(interval):
                        return self.shorten(statement, name, interval)
                wide = tuple(self.widened(x) if x in self.narrow else x for x in args)
                return replace(statement, args=wide)
            case Constant() | IndexValue() | Load():
                return statement
        if statement.value in self.narrow:
            return replace(statement, value=self.widened(statement.value))
        return statement

    def shorten(self, statement: Statement, name: str, interval: Interval | None) -> Statement:
        """The statement in 32 bits if they hold its value."""
        if not _fits(interval):
            return statement
        assert interval is not None
        self.intervals[name] = interval
        self.narrow.add(name)
        return replace(statement, dtype=torch.int32)  # type: ignore[arg-type]

    def widened(self, name: str) -> str:
        """A value in 64 bits."""
        known = self.wide.get(name)
        if known is None:
            known = self.wide[name] = f"{name}w"
            self.result.append(Compute(known, torch.int64, "cast", (name,)))
        return known

    def widen_index(self, statement: Statement) -> Statement:
        index = index_of(statement)
        used = free_names(index) & self.narrow if index is not None else frozenset()
        if not used:
            return statement
        assert index is not None
        new = index.xreplace({symbol(name): symbol(self.widened(name)) for name in sorted(used)})
        if isinstance(statement, IndexValue):
            return replace(statement, expr=new)
        assert isinstance(statement, (Load, Store))
        return replace(statement, index=new)

    def bounds(self, expr: sympy.Expr) -> Interval | None:
        """The least and greatest value of an index expression."""
        if expr.is_Integer:
            return int(expr), int(expr)
        if expr.is_Symbol:
            return self.intervals.get(expr.name)
        parts = [self.bounds(arg) for arg in expr.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if isinstance(expr, sympy.Add):
            return sum(low for low, _ in known), sum(high for _, high in known)
        if isinstance(expr, sympy.Mul):
            total = known[0]
            for part in known[1:]:
                total = _product(total, part)
            return total
        return None

    @staticmethod
    def computed(op: str, of: list[Interval]) -> Interval | None:
        """The bounds of an operator's result."""
        match op, of:
            case "add", [(a, b), (c, d)]:
                return a + c, b + d
            case "sub", [(a, b), (c, d)]:
                return a - d, b - c
            case "mul", [x, y]:
                return _product(x, y)
            case "neg", [(a, b)]:
                return -b, -a
            case "abs", [(a, b)]:
                return 0, max(abs(a), abs(b))
            case "maximum", [(a, b), (c, d)]:
                return max(a, c), max(b, d)
            case "minimum", [(a, b), (c, d)]:
                return min(a, c), min(b, d)
            case "where", [(a, b), (c, d)]:
                return min(a, c), max(b, d)
            case "floor_divide", [(a, b), (c, d)] if c == d > 0:
                return a // c, b // c
            case "remainder", [_, (c, d)] if c == d > 0:
                return 0, c - 1
        return None


def _product(x: Interval, y: Interval) -> Interval:
    ends = [a * b for a in x for b in y]
    return min(ends), max(ends)


def _fits(interval: Interval | None) -> bool:
    return interval is not None and interval[0] >= -LIMIT and interval[1] < LIMIT
