"""Compute a factor of a matrix product digit by digit of its inner axis: for numbers that share a
byte, and scales that many of them share.

r0 < 128, two numbers a byte, groups of 32, steps of 32 or less:
    load b1[64*i1 + r0 // 2]; where (r0 % 2 < 1) ...; load b2[4*i1 + r0 // 32]
->  r0 < 64:  one load b1[64*i1 + r0], the values of digits 0 and 1; load b2[4*i1 + r0_by_16]

A byte is read once, contiguously, and a scale once a step. The writer interleaves the digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy

from flambeau_inductor.indexing.expressions import FloorDiv, Mod, free_names, symbol
from flambeau_inductor.indexing.ranges import RangedMath
from flambeau_inductor.ir import (
    Axis,
    Compute,
    Constant,
    IndexValue,
    Load,
    defined_name,
    index_of,
    operands,
)
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.split_axes import rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import Body, Number, Statement

PERIODS = (2, 4, 8)
"""How many numbers may share what is loaded."""

TILE = 16
"""Triton multiplies no narrower tiles."""

KEPT = "="
"""Marks names of values from before the loop while a builder gives names."""

FOLDED = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b,
}  # fmt: skip
"""Operators of constants that decide which digit a value is."""


@dataclass(frozen=True)
class PackedOperand:
    """`values[t]` is what `body` computes for the points `period * r0 + t` of the inner axis.
    `shared` names what is the same for a whole step: by symbol, how many points have it.
    """

    period: int
    body: Body
    values: tuple[str, ...]
    shared: dict[str, int]


def unpack(
    body: Body, value: str, axis: Axis, step: int, least: int = TILE
) -> PackedOperand | None:
    """A factor's statements along the axis, for steps of so many points; None if it has no digits
    and shares nothing. Values that the body reads and does not define are from before the loop.
    `least`: a step has so many loaded numbers or more.
    """
    if not isinstance(axis.size, int):
        return None
    period = period_of(body, axis, step, least)
    math = RangedMath({axis.symbol.name: sympy.Integer(axis.size // period)})
    shared: dict[str, int] = {}
    builder = BodyBuilder()
    own = {name for each in body if (name := defined_name(each)) is not None}
    values = []
    for digit in range(period):
        place = axis.symbol * period + digit
        shares = SharedQuotients(axis, period, step, shared)
        copy = DigitCopy(builder, {axis.symbol: place} if period > 1 else {}, math, own, shares)
        values.append(copy.run(body, value))
    if period == 1 and not shared:
        return None
    renamed = {name: f"u{number}" for number, name in enumerate(builder.by_name)}
    statements = tuple(_renamed(each, renamed) for each in _needed(builder.statements, values))
    return PackedOperand(period, statements, tuple(renamed[name] for name in values), shared)


def steps_of(body: Body, axis: Axis) -> list[int]:
    """How many points of the axis share a value of a factor, where they are a power of two."""
    result = set()
    for statement in body:
        for atom in _divisions(statement, axis):
            by = atom.args[1]
            if by.is_Integer and int(by) & (int(by) - 1) == 0 and int(by) not in PERIODS:
                result.add(int(by))
    return sorted(result)


def _needed(statements: Sequence[Statement], values: Sequence[str]) -> list[Statement]:
    """The statements that some values depend on."""
    live, kept = set(values), []
    for statement in reversed(statements):
        if defined_name(statement) in live:
            live.update(operands(statement))
            kept.append(statement)
    return kept[::-1]


def _divisions(statement: Statement, axis: Axis) -> list[sympy.Expr]:
    index = index_of(statement)
    if index is None or not index.has(FloorDiv, Mod):
        return []
    atoms = index.atoms(FloorDiv, Mod)
    return [atom for atom in atoms if axis.symbol in atom.args[0].free_symbols]


def period_of(body: Body, axis: Axis, step: int, least: int = TILE) -> int:
    """The largest of PERIODS by which the axis is divided; 1 if there is none."""
    assert isinstance(axis.size, int)
    divisors = {int(atom.args[1]) for statement in body for atom in _divisions(statement, axis)
                if atom.args[0] == axis.symbol and atom.args[1].is_Integer}  # fmt: skip
    for period in reversed(PERIODS):
        if period in divisors and axis.size % period == 0 and step % (least * period) == 0:
            return period
    return 1


@dataclass(frozen=True)
class SharedQuotients:
    """Replaces `r0 // n` by a symbol where that is one number for a whole step."""

    axis: Axis
    period: int
    step: int
    shared: dict[str, int]

    def __call__(self, index: sympy.Expr) -> sympy.Expr:
        found = {}
        for atom in index.atoms(FloorDiv):
            if atom.args[0] == self.axis.symbol and atom.args[1].is_Integer:
                points = int(atom.args[1]) * self.period
                if points % self.step == 0:
                    name = f"{self.axis.symbol}_by_{points}"
                    self.shared[name] = points
                    found[atom] = symbol(name)
        return index.xreplace(found) if found else index


class DigitCopy:
    """Copies statements into a builder at one digit, and decides what the digit decides."""

    def __init__(
        self, builder: BodyBuilder, mapping: dict[sympy.Symbol, sympy.Expr], math: RangedMath,
        own: set[str], shares: SharedQuotients | None = None,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.mapping = mapping
        self.math = math
        self.own = own
        self.shares = shares
        self.names: dict[str, str] = {}

    def run(self, body: Body, value: str) -> str:
        """Copies a body; returns the new name of a value."""
        for statement in body:
            name = defined_name(statement)
            assert name is not None
            self.names[name] = self.step(statement)
        return self.names[value]

    def number(self, name: str) -> Number | None:
        """The number that a value of the builder is, if it is one."""
        statement = self.builder.by_name.get(name)
        return statement.value if isinstance(statement, Constant) else None

    def index(self, expr: sympy.Expr) -> sympy.Expr:
        """An index expression at the digit."""
        named = {symbol(old): symbol(self.names[old]) for old in free_names(expr) & self.own}
        changed = rewrite(expr, self.mapping | named, self.math)
        return changed if self.shares is None else self.shares(changed)

    def name(self, old: str) -> str:
        """The new name of an operand. What the loop does not compute keeps its own, marked."""
        return self.names[old] if old in self.own else KEPT + old

    def step(self, statement: Statement) -> str:
        """Copies a statement."""
        builder = self.builder
        match statement:
            case Constant(_, dtype, value):
                return builder.constant(value, dtype)
            case IndexValue(_, dtype, expr):
                return builder.index_value(self.index(expr), dtype)
            case Load(_, dtype, buffer, index, mask):
                index = self.index(index)
                condition = None if mask is None else self.name(mask)
                known = None if condition is None else self.number(condition)
                if known is False:
                    return builder.constant(0, dtype)
                return builder.load(buffer, index, dtype, None if known else condition)
            case Compute(_, dtype, op, args):
                names = tuple(self.name(arg) for arg in args)
                numbers = [self.number(name) for name in names]
                if op == "where" and numbers[0] is not None:
                    return names[1] if numbers[0] else names[2]
                if op in FOLDED and None not in numbers and not dtype.is_floating_point:
                    return builder.constant(FOLDED[op](*numbers), dtype)
                return builder.compute(op, names, dtype)
        raise TypeError(f"no statement of a factor: {statement!r}")


def _renamed(statement: Statement, names: dict[str, str]) -> Statement:
    """A statement with its own name and its operands renamed."""
    own = defined_name(statement)
    assert own is not None
    changes: dict[str, Any] = {"name": names[own]}
    if isinstance(statement, Compute):
        changes["args"] = tuple(_name(arg, names) for arg in operands(statement))
    elif isinstance(statement, Load) and statement.mask is not None:
        changes["mask"] = _name(statement.mask, names)
    return replace(statement, **changes)


def _name(old: str, names: dict[str, str]) -> str:
    return names.get(old) or old.removeprefix(KEPT)
