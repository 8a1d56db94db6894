"""Builds a body: names values, shares equal ones, and simplifies as it builds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import (
    CheckIndex,
    ColumnReduce,
    Compute,
    Constant,
    IndexValue,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    TileReduce,
    index_of,
    operands,
)
from flambeau_inductor.scalar_ops import DISCONTINUOUS, SCALAR_OPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import sympy

    from flambeau_inductor.ir import Body, Integer, Number, Statement

HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})
EXTREMES = frozenset({"argmax", "argmin", "max", "min", "sum_exp"})
"""Reductions that say how far elements are from an extreme: beside a great mask, a rounding."""
CHOICES = frozenset({"abs", "maximum", "minimum", "neg", "where"})
"""Operators whose result is one of their operands, or one with another sign."""
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class BodyBuilder:
    """A growing body.  Methods take and give value names; equal statements get one name."""

    def __init__(self, elide_cast_pairs: bool = True) -> None:
        self.elide_cast_pairs = elide_cast_pairs
        self.statements: list[Statement] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.made: dict[tuple[Any, ...], str] = {}
        self.by_name: dict[str, Statement] = {}
        self.unrounded: dict[str, str] = {}
        """By value that was rounded to a half dtype and widened again, the value before."""
        self.decisive: set[str] = set()
        """The rounded values that a discontinuous operator reads: so does everything else."""
        self.given: dict[int, tuple[str, ...]] = {}
        """By place of a statement that reads unrounded values: the operands that it was given."""

    def define(self, key: tuple[Any, ...], kind: Any, dtype: torch.dtype, *fields: Any) -> str:
        """The value of this statement, made if no equal one is there."""
        cached = self.made.get(key)
        if cached is None:
            cached = self.made[key] = f"v{len(self.by_name)}"
            statement = kind(cached, dtype, *fields)
            self.statements.append(statement)
            self.by_name[cached] = statement
            self.dtypes[cached] = dtype
        return cached

    # Leaves and memory

    def constant(self, value: Number, dtype: torch.dtype) -> str:
        """A number, taken in the dtype."""
        number = as_number(value, dtype)
        if isinstance(number, float) and number == 0.0 and math.copysign(1.0, number) < 0:
            # Statements compare by value, and -0.0 == 0.0.
            if dtype.itemsize < 4:
                return self.compute("cast", (self.constant(number, torch.float32),), dtype)
            return self.compute("neg", (self.constant(0.0, dtype),), dtype)
        return self.define(("constant", number, dtype), Constant, dtype, number)

    def index_value(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        """An index expression as a value."""
        if expr.is_Integer:
            return self.constant(int(expr), dtype)
        if expr.is_Symbol and self.dtypes.get(expr.name) is dtype:
            return expr.name
        return self.define(("index", expr, dtype), IndexValue, dtype, expr)

    def load(
        self, buffer: str, index: sympy.Expr, dtype: torch.dtype, mask: str | None = None
    ) -> str:
        """buffer[index]."""
        return self.define(("load", buffer, index, mask), Load, dtype, buffer, index, mask)

    def store(
        self, buffer: str, index: sympy.Expr, value: str, mode: str = "", mask: str | None = None
    ) -> None:
        """buffer[index] = value where the mask holds, or a scatter of that mode."""
        source = self.unrounded.get(value, value)
        self.statements.append(Store(buffer, index, source, mode, mask))
        self.note_reading(value)

    def check_index(self, value: str, size: Integer, mask: str | None = None) -> None:
        """An indirect index must be in range."""
        key = ("check", value, size, mask)
        if key not in self.made:
            self.made[key] = value
            self.statements.append(CheckIndex(value, size, mask))

    def reduce(self, kind: str, value: str, dtype: torch.dtype) -> str:
        """A reduction over the inner axes."""
        if kind in EXTREMES:
            self.decide(value)
        return self.define_reading(Reduce, dtype, kind, value)

    def reduce_columns(self, kind: str, value: str, dtype: torch.dtype) -> str:
        """A reduction over the outer points of a share."""
        if kind in EXTREMES:
            self.decide(value)
        return self.define_reading(ColumnReduce, dtype, kind, value)

    def reduce_tile(self, kind: str, value: str, dtype: torch.dtype, points: int) -> str:
        """A reduction over a tile of the last outer axis."""
        if kind in EXTREMES:
            self.decide(value)
        return self.define_reading(TileReduce, dtype, kind, value, points)

    def scan(self, kind: str, value: str, dtype: torch.dtype, reverse: bool) -> str:
        """A scan along the inner axes."""
        if kind in {"max", "min"}:
            self.decide(value)
        return self.define_reading(Scan, dtype, kind, value, reverse)

    def sort(self, kind: str, value: str, dtype: torch.dtype, descending: bool) -> str:
        """A sort along the inner axes."""
        self.decide(value)
        return self.define_reading(Sort, dtype, kind, value, descending)

    # Operators

    def compute(self, op: str, args: tuple[str, ...], dtype: torch.dtype) -> str:
        """An operator on values; `dtype` is the result's."""
        if op in DISCONTINUOUS and not (op == "ne" and args[0] == args[1]):  # NaN stays NaN
            self.decide(*args)
        elif op == "sub" and args[0] in self.unrounded and self.is_of_row(args[1]):
            self.decide(args[0])
        source = tuple([self.unrounded.get(arg, arg) for arg in args])
        place = len(self.statements)
        name = self.define((op, args, dtype), Compute, dtype, op, source)
        if len(self.statements) > place:
            self.note_reading(*args)
        return name

    def pointwise(self, op: str, *args: str) -> str:
        """An operator other than cast; the result's dtype follows from the operands'."""
        result = SCALAR_OPS[op].result
        dtype = self.dtypes[args[-1]] if result == "same" else getattr(torch, result)
        return self.compute(op, args, dtype)

    def cast(self, x: str, to: torch.dtype) -> str:
        """x in another dtype."""
        if to in FLOATS:
            x = self.unrounded.get(x, x)
        else:
            self.decide(x)
        source = self.dtypes[x]
        if source is to:
            return x
        statement = self.by_name[x]
        if isinstance(statement, Constant) and source not in FLOATS and to in FLOATS:
            return self.constant(statement.value, to)
        if source in HALF_DTYPES and isinstance(statement, Compute) and statement.op == "cast":
            origin = statement.args[0]
            if self.dtypes[origin] is to and self.holds(origin, source):
                return origin
            if self.dtypes[origin] is to and self.elide_cast_pairs:
                rounded = self.compute("cast", (x,), to)
                self.unrounded[rounded] = origin
                return rounded
        return self.compute("cast", (x,), to)

    def holds(self, value: str, narrow: torch.dtype) -> bool:
        """Whether a value is a number of a narrower dtype: nothing rounds it to that."""
        statement = self.by_name[value]
        if isinstance(statement, Constant):
            number = float(statement.value)
            return number != number or torch.tensor(number, dtype=narrow).item() == number
        if not isinstance(statement, Compute):
            return False
        if statement.op == "cast":
            return self.dtypes[statement.args[0]] is narrow
        chosen = statement.args[1:] if statement.op == "where" else statement.args
        return statement.op in CHOICES and all(self.holds(each, narrow) for each in chosen)

    # Values that are rounded to half precision

    def decide(self, *values: str) -> None:
        """A discontinuous operator reads these: two readings must not differ by a rounding."""
        self.decisive.update(value for value in values if value in self.unrounded)

    def is_of_row(self, value: str) -> bool:
        """Whether a value is one number for a row of what is loaded: an extreme, most likely."""
        statement = self.by_name[value]
        if isinstance(statement, Load):
            loads = [each for each in self.statements if isinstance(each, Load)]
            names = set().union(*(free_names(load.index) for load in loads))
            return set(free_names(statement.index)) < names
        return isinstance(statement, (Reduce, ColumnReduce, TileReduce))

    def note_reading(self, *values: str) -> None:
        """The last statement was given these values; it reads what they were before rounding."""
        if any(value in self.unrounded for value in values):
            self.given[len(self.statements) - 1] = values

    def define_reading(
        self, kind: Any, dtype: torch.dtype, name: str, value: str, *fields: Any
    ) -> str:
        """The value of a reduction, scan or sort of `value`."""
        source = self.unrounded.get(value, value)
        place = len(self.statements)
        made = self.define((kind, name, value, *fields), kind, dtype, name, source, *fields)
        if len(self.statements) > place:
            self.note_reading(value)
        return made

    def both(self, a: str | None, b: str) -> str:
        """The conjunction of two masks, the first of which may be absent."""
        return b if a is None or a == b else self.pointwise("bitwise_and", a, b)

    def finish(self) -> Body:
        """The body without what no Store or CheckIndex needs."""
        self.decide_what_is_stored()
        if not self.given:
            return drop_dead(self.statements)
        return drop_dead(
            equal_once(
                self.of_rounded(place, statement) for place, statement in enumerate(self.statements)
            )
        )

    def decide_what_is_stored(self) -> None:
        """What reads a stored value here reads it as other kernels do, rounded."""
        stored = {each.value for each in self.statements if isinstance(each, Store)}
        for rounded in self.unrounded:
            if not stored.isdisjoint(operands(self.by_name[rounded])):
                self.decisive.add(rounded)

    def of_rounded(self, place: int, statement: Statement) -> Statement:
        """The statement as it reads values that decide something."""
        if place not in self.given:
            return statement
        read = [v if v in self.decisive else self.unrounded.get(v, v) for v in self.given[place]]
        if isinstance(statement, Compute):
            return replace(statement, args=tuple(read))
        return replace(statement, value=read[0])  # type: ignore[call-arg,arg-type]


def as_number(value: Number, dtype: torch.dtype) -> Number:
    """A Python number as the dtype holds it; integers wrap around, as eager's unsigned ones do."""
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        number = float(value)
        return (
            math.nan if number != number else number
        )  # one NaN object, so that equal constants compare equal
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min


def equal_once(statements: Iterable[Statement]) -> list[Statement]:
    """The statements without those that are equal to earlier ones but for the name, which readers
    then read.
    """
    names: dict[str, str] = {}
    known: dict[Statement, str] = {}
    result = []
    for statement in statements:
        if names:
            statement = with_names(statement, names)
        if not isinstance(statement, (Store, CheckIndex)):
            first = known.setdefault(replace(statement, name=""), statement.name)
            if first != statement.name:
                names[statement.name] = first
                continue
        result.append(statement)
    return result


def with_names(statement: Statement, names: Mapping[str, str]) -> Statement:
    """A statement that reads values under other names."""
    changes: dict[str, Any] = {}
    for field in ("value", "mask"):
        old = getattr(statement, field, None)
        if isinstance(old, str) and old in names:
            changes[field] = names[old]
    if isinstance(statement, Compute):
        changes["args"] = tuple([names.get(arg, arg) for arg in statement.args])
    index = index_of(statement)
    if index is not None and (used := sorted(free_names(index) & names.keys())):
        field = "expr" if isinstance(statement, IndexValue) else "index"
        changes[field] = index.xreplace({symbol(name): symbol(names[name]) for name in used})
    return replace(statement, **changes) if changes else statement


def drop_dead(statements: list[Statement]) -> Body:
    """The statements that a Store or CheckIndex depends on."""
    live: set[str] = set()
    kept = []
    for statement in reversed(statements):
        if isinstance(statement, (Store, CheckIndex)) or statement.name in live:
            kept.append(statement)
            live.update(operands(statement))
            index = index_of(statement)
            if index is not None:
                live.update(free_names(index))
    return tuple(reversed(kept))
