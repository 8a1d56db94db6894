"""Division and modulus of index expressions whose symbols have known ranges, and the index maps of
reshape.

i0 < 6, i1 < 12, i2 < 64:   (64*i1 + i2) // 768 -> 0      (768*i0 + 64*i1 + i2) % 768 -> 64*i1 + i2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import (
    FloorDiv,
    Mod,
    free_names,
    quotient,
    split_multiples,
    sympify,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Ranges = dict[str, sympy.Expr]
"""Symbol name -> the size below which it stays; others are sizes or unbounded indices."""


class RangedMath:
    """Index arithmetic under one set of ranges, memoised since layers of a model repeat."""

    def __init__(self, ranges: Ranges, unbounded: set[str] | None = None) -> None:
        self.ranges = ranges
        self.unbounded = unbounded if unbounded is not None else set()
        self.memo: dict[tuple[object, ...], sympy.Expr] = {}

    def floordiv(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        """a // b."""
        key = ("//", a, b)
        cached = self.memo.get(key)
        if cached is None:
            cached = self.memo[key] = self._divide(a, b)[0]
        return cached

    def mod(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        """a % b."""
        key = ("%", a, b)
        cached = self.memo.get(key)
        if cached is None:
            cached = self.memo[key] = self._divide(a, b)[1]
        return cached

    def _divide(self, a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        whole, rest = split_multiples(a, b)
        if self.known_less(rest, b):
            return whole, rest
        for step in self._steps(rest):
            divisor = quotient(b, step)
            if divisor is None:
                continue
            coarse, fine = split_multiples(rest, step)
            if coarse is not sympy.S.Zero and self.known_less(fine, step):
                q, r = self._divide(coarse, divisor)
                return whole + q, sympy.expand(step * r) + fine
        return whole + FloorDiv(rest, b), Mod(rest, b)

    def _steps(self, expr: sympy.Expr) -> list[sympy.Expr]:
        """The distinct coefficients, other than 1, of the ranged symbols in a sum."""
        result: dict[sympy.Expr, None] = {}
        for term in sympy.Add.make_args(expr):
            factors = [
                f for f in sympy.Mul.make_args(term) if not (free_names(f) & self.ranges.keys())
            ]
            step = sympy.Mul(*factors)
            if step is not sympy.S.One:
                result[step] = None
        return list(result)

    def known_less(self, a: sympy.Expr, b: sympy.Expr) -> bool:
        """Whether a < b at every point of the ranges, for all nonnegative sizes."""
        if a is sympy.S.Zero:
            return (b.is_Integer and int(b) > 0) or b.is_Symbol
        top = self.upper_bound(a)
        return top is not None and _known_positive(sympy.expand(b - top))

    def upper_bound(self, expr: sympy.Expr) -> sympy.Expr | None:
        """The greatest value of an expression, or None if it is not known."""
        if expr.is_Integer:
            return expr
        if expr.is_Symbol:
            if expr.name in self.unbounded:
                return None
            size = self.ranges.get(expr.name)
            return expr if size is None else size - 1
        if isinstance(expr, Mod):
            return None if free_names(expr.args[1]) & self.ranges.keys() else expr.args[1] - 1
        if isinstance(expr, FloorDiv):
            top = self.upper_bound(expr.args[0])
            return None if top is None else FloorDiv(top, expr.args[1])
        if expr.is_Add or expr.is_Mul:
            if any(arg.is_Integer and int(arg) < 0 for arg in expr.args if expr.is_Mul):
                return None
            tops = [self.upper_bound(arg) for arg in expr.args]
            return None if any(top is None for top in tops) else expr.func(*tops)
        return None


def _known_positive(expr: sympy.Expr) -> bool:
    """Whether a polynomial in nonnegative sizes is certainly > 0."""
    constant = 0
    for term in sympy.Add.make_args(expr):
        if term.is_Integer:
            constant = int(term)
        elif term.could_extract_minus_sign():
            return False
    return constant > 0


def reshape_index(
    old: Sequence[sympy.Expr],
    new: Sequence[sympy.Expr],
    index: Sequence[sympy.Expr],
    math: RangedMath,
) -> tuple[sympy.Expr, ...]:
    """The index in shape `old` of the element at `index` of shape `new`, of equal size."""
    result: list[sympy.Expr] = [sympy.S.Zero] * len(old)
    o, n = len(old) - 1, len(new) - 1
    while o >= 0 or n >= 0:
        if o >= 0 and old[o] is sympy.S.One:
            o -= 1
            continue
        if n >= 0 and new[n] is sympy.S.One:
            n -= 1
            continue
        if o < 0 or n < 0:
            break
        o_end, n_end = o, n
        have, want = old[o], new[n]
        while have != want:
            # The group that starts here ends where the products agree; symbolic products that never
            # do take all that is left.
            grow_old = o > 0 and (n == 0 or not _at_least(have, want))
            if grow_old:
                o -= 1
                have = sympy.expand(have * old[o])
            elif n > 0:
                n -= 1
                want = sympy.expand(want * new[n])
            else:
                break
        _map_group(old[o : o_end + 1], new[n : n_end + 1], index[n : n_end + 1], math, result, o)
        o, n = o - 1, n - 1
    return tuple(result)


def _at_least(a: sympy.Expr, b: sympy.Expr) -> bool:
    if a.is_Integer and b.is_Integer:
        return int(a) >= int(b)
    return quotient(a, b) is not None


def _map_group(
    old: Sequence[sympy.Expr],
    new: Sequence[sympy.Expr],
    index: Sequence[sympy.Expr],
    math: RangedMath,
    result: list[sympy.Expr],
    first: int,
) -> None:
    """Fill `result[first:]` with the index into dims `old` for an index into `new`, as large."""
    if len(old) == 1 and len(new) == 1:
        result[first] = index[0]
        return
    flat: sympy.Expr = sympy.S.Zero
    for size, position in zip(new, index, strict=True):
        flat = sympy.expand(flat * size + position)
    for d in range(len(old) - 1, 0, -1):
        result[first + d] = math.mod(flat, sympify(old[d]))
        flat = math.floordiv(flat, sympify(old[d]))
    result[first] = flat
