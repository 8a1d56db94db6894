"""Symbolic sizes: interned integer polynomials, and the relations asked of them.

    env = SizeEnv()
    b = env.symbol(8, source="x.shape[0]")        # s0, hint 8
    n = (b * 6 + 4) // 2                          # 3*s0 + 2
    # decided when provable, else by the hint: records s0 <= 170
    if sizes.le(n, 512): ...

`Size = int | Expr`: every function here takes both, and arithmetic that comes out constant returns
an int. An Expr has a *hint*, its value for the sizes seen while tracing. A relation is asked by
name, `eq ne lt le gt ge(a, b)`: it is decided by the canonical form of a - b, then by bounds and
the guards already taken, and only then by the hint, which records a guard in the `SizeEnv`.
`known_eq(a, b)` and its like never guard. `==` between Exprs is identity.

An *unbacked* symbol (`SizeEnv.unbacked`: `x.sum().item()`, the length of `x.nonzero()`) is defined
by the program itself. It has a range, and a hint that is good for choosing tile sizes only. A
relation of it that the range does not decide takes no guard: what must hold for the program to make
sense (sizes that must agree, a size that must not be negative) is assumed, and noted in
`SizeEnv.assumed` for the program to check as it runs; a size is taken as neither 0 nor 1; any other
question is the oracle's (`size_oracle.py`), and without one raises `DataDependentSize`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.size_expressions import (
    Atom,
    Expr,
    ExprEnv,
    Monomial,
    Size,
    SizeGuard,
    current,
    format_size,
    hint_of,
    known_eq,
    known_ge,
    known_gt,
    known_le,
    known_lt,
    known_ne,
    ordered_terms,
    size_max,
    size_min,
)
from flambeau_prims.size_ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Atom", "Expr", "ExprEnv", "Monomial", "Size", "SizeEnv", "SizeGuard", "as_int", "ceil_div",
    "current", "eq", "expect", "format_size", "ge", "gt", "hint_of", "is_symbolic", "known_eq",
    "known_ge", "known_gt", "known_le", "known_lt", "known_ne", "le", "likely_eq", "likely_ge",
    "lt", "ne", "ordered_terms", "size_max", "size_min",
]  # fmt: skip


class SizeEnv(ExprEnv):
    """The symbols of one compile, the guards of its trace, and the tables of its Exprs."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges(self)


def is_symbolic(size: Size) -> bool:
    """Whether a size is an Expr."""
    return isinstance(size, Expr)


def as_int(size: Size) -> int:
    """The size as an int; a symbolic one is specialised to its hint, with a guard."""
    if isinstance(size, Expr):
        if size.env.is_unbacked(size):
            return size.env.ranges.only_value(size)
        if size.env.refuse is not None:
            size.env.refuse(size.symbols(), f"the value of {size}")
        eq(size, size.hint)
        return size.hint
    return size


def eq(a: Size, b: Size) -> bool:
    """a == b, guarding if need be."""
    if a is b:
        return True
    difference = a - b
    if isinstance(difference, Expr):
        return difference.env.ranges.is_zero(difference)
    return difference == 0


def ne(a: Size, b: Size) -> bool:
    """a != b, guarding if need be."""
    return not eq(a, b)


def ge(a: Size, b: Size) -> bool:
    """a >= b, guarding if need be."""
    difference = a - b
    if isinstance(difference, Expr):
        return difference.env.ranges.is_non_negative(difference)
    return difference >= 0


def le(a: Size, b: Size) -> bool:
    """a <= b, guarding if need be."""
    return ge(b, a)


def gt(a: Size, b: Size) -> bool:
    """a > b, guarding if need be."""
    return ge(a, b + 1)


def lt(a: Size, b: Size) -> bool:
    """a < b, guarding if need be."""
    return ge(b, a + 1)


def expect(op: str, a: Size, b: Size) -> bool:
    """`a op b`, which a valid program needs: assumed of unbacked sizes, and checked later."""
    difference = a - b
    if not isinstance(difference, Expr) or not difference.env.is_unbacked(difference):
        return _RELATIONS[op](a, b)
    if op in ("==", "!="):
        return difference.env.ranges.assume_zero(difference, op == "==")
    slack = {"<": -difference - 1, "<=": -difference, ">": difference - 1, ">=": difference}[op]
    return slack.env.ranges.assume_non_negative(slack) if isinstance(slack, Expr) else slack >= 0


_RELATIONS: dict[str, Callable[[Size, Size], bool]] = {
    "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


def likely_eq(a: Size, b: Size) -> bool:
    """As `eq`, to pick a layout: unbacked sizes differ unless known equal; nothing is assumed."""
    difference = a - b
    if isinstance(difference, Expr) and difference.env.is_unbacked(difference):
        return known_eq(a, b)
    return _for_layout(eq, difference, a, b)


def likely_ge(a: Size, b: Size) -> bool:
    """As `ge`, where the answer only picks among layouts: an unbacked size is as its hint."""
    difference = a - b
    if isinstance(difference, Expr) and difference.env.is_unbacked(difference):
        return known_ge(a, b) or (not known_lt(a, b) and difference.hint >= 0)
    return _for_layout(ge, difference, a, b)


def _for_layout(ask: Callable[[Size, Size], bool], difference: Size, a: Size, b: Size) -> bool:
    """The answer; a watched program has not asked, so the guard names no line of it."""
    if not isinstance(difference, Expr) or difference.env.refuse is None:
        return ask(a, b)
    env = difference.env
    place, env.place = env.place, str
    try:
        return ask(a, b)
    finally:
        env.place = place


def ceil_div(a: Size, b: Size) -> Size:
    """a / b rounded up, for positive b."""
    return (a + b - 1) // b
