"""Split the axes of a nest where its index expressions divide them, so that the divisions go away.

i0 < 768: load x[64*(i0 // 64) + ...(i0 % 64)]   ->   i0 < 12, i1 < 64: load x[64*i0 + ... i1]
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import (
    FloorDiv,
    Mod,
    free_names,
    int_if_known,
    join_digits,
    quotient,
    symbol,
)
from flambeau_inductor.indexing.ranges import RangedMath
from flambeau_inductor.ir import Axis, IndexValue, Load, Store, index_of

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, Statement

Axes = tuple[Axis, ...]

MAX_SPLITS = 16


def split_axes(outer: Axes, inner: Axes, body: Body) -> tuple[Axes, Axes, Body]:
    """The nest with axes split where an index expression divides one evenly, and renumbered."""
    for _ in range(MAX_SPLITS):
        result = _find_split(outer + inner, body)
        if result is None:
            break
        axis, step = result
        outer, inner, body = _split(outer, inner, body, axis, step)
    return outer, inner, body


def _find_split(axes: Axes, body: Body) -> tuple[Axis, sympy.Expr] | None:
    """An axis and its steps to take together, from a FloorDiv or Mod of that axis alone."""
    by_symbol = {axis.symbol: axis for axis in axes}
    for statement in body:
        index = index_of(statement)
        if index is None or not index.has(FloorDiv, Mod):
            continue
        for atom in sorted(index.atoms(FloorDiv, Mod), key=sympy.default_sort_key):
            axis = by_symbol.get(_symbol_of(atom))
            if axis is not None and quotient(sympy.sympify(axis.size), atom.args[1]) not in (
                None,
                1,
            ):
                return axis, atom.args[1]
    return None


def _symbol_of(atom: sympy.Expr) -> sympy.Expr:
    """The dividend; an added number stays in the short axis: (2*i0+i1+1)//2 is i0+(i1+1)//2."""
    divided = atom.args[0]
    if isinstance(atom, FloorDiv) and divided.is_Add and len(divided.args) == 2:
        number, axis = divided.as_coeff_Add()
        return axis if number > 0 else divided
    return divided


def _split(
    outer: Axes, inner: Axes, body: Body, axis: Axis, step: sympy.Expr
) -> tuple[Axes, Axes, Body]:
    """The nest with `axis` as two axes: high * step + low."""
    count = quotient(sympy.sympify(axis.size), step)
    assert count is not None
    high, low = symbol("split_high"), symbol("split_low")
    parts = (Axis(high, int_if_known(count)), Axis(low, int_if_known(step)))
    renamed: dict[sympy.Symbol, sympy.Expr] = {}
    groups = []
    for axes, prefix in ((outer, "i"), (inner, "r")):
        parted = [part for old in axes for part in (parts if old is axis else (old,))]
        named = tuple(Axis(symbol(f"{prefix}{n}"), part.size) for n, part in enumerate(parted))
        renamed.update({old.symbol: new.symbol for old, new in zip(parted, named, strict=True)})
        groups.append(named)
    renamed[axis.symbol] = renamed[high] * step + renamed[low]
    ranges = {new.symbol.name: sympy.sympify(new.size) for axes in groups for new in axes}
    math = RangedMath(ranges)
    return groups[0], groups[1], tuple(reindex(statement, renamed, math) for statement in body)


def reindex(
    statement: Statement, mapping: dict[sympy.Symbol, sympy.Expr], math: RangedMath
) -> Statement:
    """A statement with the symbols of its index replaced, and simplified in the new ranges."""
    match statement:
        case Load(index=expr) | Store(index=expr):
            return replace(statement, index=rewrite(expr, mapping, math))
        case IndexValue(expr=expr):
            return replace(statement, expr=rewrite(expr, mapping, math))
    return statement


def rewrite(
    expr: sympy.Expr, mapping: dict[sympy.Symbol, sympy.Expr], math: RangedMath
) -> sympy.Expr:
    """The expression with symbols replaced (all at once), divisions rebuilt from the inside out."""
    if expr.is_Symbol:
        return mapping.get(expr, expr)
    if expr.is_Integer or free_names(expr).isdisjoint(symbol.name for symbol in mapping):
        return expr
    args = [rewrite(arg, mapping, math) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return math.floordiv(args[0], args[1])
    if isinstance(expr, Mod):
        return math.mod(args[0], args[1])
    result = sympy.expand(expr.func(*args))
    return join_digits(result) if result.is_Add and result.has(Mod) else result
