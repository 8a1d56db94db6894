"""Integer index expressions: symbols, floor division and modulus as sympy functions, and their
printed form.

Everything is nonnegative, so floor division is C's `/` and modulus is C's `%`.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import sympy

if TYPE_CHECKING:
    from collections.abc import Callable

Integer: TypeAlias = "int | sympy.Expr"
"""An int, or an expression over size symbols."""


@cache
def symbol(name: str) -> sympy.Symbol:
    """The integer, nonnegative symbol of this name: a loop axis, a size, or an indirect index."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


class FloorDiv(sympy.Function):
    """`a // b` for a >= 0, b > 0."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        """`a // b` where it simplifies, else None."""
        if b is sympy.S.One or a is sympy.S.Zero:
            return a
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) // int(b))
        if a == b:
            return sympy.S.One
        if isinstance(a, FloorDiv):
            return FloorDiv(a.args[0], sympy.expand(a.args[1] * b))
        whole, rest = split_multiples(a, b)
        if whole is not sympy.S.Zero:
            return whole + FloorDiv(rest, b)
        return None


class Mod(sympy.Function):
    """`a % b` for a >= 0, b > 0; sympy's own Mod spends time on other cases."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        """`a % b` where it simplifies, else None."""
        if b is sympy.S.One or a is sympy.S.Zero or a == b:
            return sympy.S.Zero
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) % int(b))
        if isinstance(a, Mod) and quotient(a.args[1], b) is not None:
            return Mod(a.args[0], b)
        whole, rest = split_multiples(a, b)
        if whole is not sympy.S.Zero:
            return Mod(rest, b)
        return None


def quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """a / b where that is a polynomial with integer coefficients, else None; a is one term."""
    if b.is_Integer:
        if b == 0:
            return None
        coefficient, rest = a.as_coeff_Mul()
        if coefficient.is_Integer and int(coefficient) % int(b) == 0:
            return (coefficient // b) * rest
        return None
    ratio = sympy.cancel(a / b)
    numerator, denominator = ratio.as_numer_denom()
    return ratio if denominator == 1 and not numerator.has(sympy.Rational(1, 2)) else None


@lru_cache(maxsize=16384)
def split_multiples(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """(q, r) with a == b*q + r, where q takes the terms of `a` that are multiples of b, and of a
    number the multiples of b in it; r has no negative term.
    """
    whole, rest = [], []
    for term in sympy.Add.make_args(a):
        if term.is_Integer and b.is_Integer and int(b) > 0:
            multiple, remainder = divmod(int(term), int(b))
            whole += [sympy.Integer(multiple)] if multiple else []
            rest += [sympy.Integer(remainder)] if remainder else []
            continue
        q = quotient(term, b)
        if q is None:
            rest.append(term)
        else:
            whole.append(q)
    if not whole or any(term.could_extract_minus_sign() for term in rest):
        return sympy.S.Zero, a
    return sympy.Add(*whole), sympy.Add(*rest)


def join_digits(expr: sympy.Expr) -> sympy.Expr:
    """The sum with `c*b*(a // b) + c*(a % b)` written as `c*a`."""
    terms = {term: term.as_coeff_Mul() for term in sympy.Add.make_args(expr)}
    for low, (coefficient, factor) in terms.items():
        if not isinstance(factor, Mod):
            continue
        a, b = factor.args
        for high, (whole, quotient_) in terms.items():
            if quotient_ == FloorDiv(a, b) and whole == coefficient * b:
                return join_digits(expr - low - high + coefficient * a)
    return expr


def int_if_known(size: sympy.Expr) -> int | sympy.Expr:
    """The int that an expression is, or the expression."""
    return int(size) if size.is_Integer else size


@lru_cache(maxsize=65536)
def free_names(expr: sympy.Expr) -> frozenset[str]:
    """The names of the symbols that occur in an expression."""
    return frozenset(symbol.name for symbol in expr.free_symbols)


@lru_cache(maxsize=65536)
def substitute(
    expr: sympy.Expr, mapping: tuple[tuple[sympy.Symbol, sympy.Expr], ...]
) -> sympy.Expr:
    """The expression with symbols replaced, expanded where that matters."""
    relevant = {a: b for a, b in mapping if a.name in free_names(expr)}
    if not relevant:
        return expr
    replaced = expr.xreplace(relevant)
    if all(b.is_Symbol or b.is_Integer for b in relevant.values()):
        return replaced
    return sympy.expand(replaced)


@lru_cache(maxsize=65536)
def linear_parts(
    expr: sympy.Expr, axes: frozenset[str]
) -> tuple[dict[str, sympy.Expr], sympy.Expr] | None:
    """The coefficient of each axis and the rest, of an expression that is linear in the axes; None
    if it is not.

    Coefficients and rest are free of the axes.
    """
    coefficients: dict[str, sympy.Expr] = {}
    rest = []
    for term in sympy.Add.make_args(expr):
        names = free_names(term) & axes
        if not names:
            rest.append(term)
            continue
        if len(names) > 1:
            return None
        (name,) = names
        others = [f for f in sympy.Mul.make_args(term) if not (f.is_Symbol and f.name == name)]
        if any(name in free_names(f) for f in others):
            return None
        coefficients[name] = coefficients.get(name, sympy.S.Zero) + sympy.Mul(*others)
    return coefficients, sympy.Add(*rest)


@lru_cache(maxsize=65536)
def linear(
    index: tuple[sympy.Expr, ...], strides: tuple[sympy.Expr, ...], offset: sympy.Expr
) -> sympy.Expr:
    """offset + the sum of index times stride."""
    return sympy.expand(sympy.Add(offset, *[i * s for i, s in zip(index, strides, strict=True)]))


def sympify(value: Integer) -> sympy.Expr:
    """An int or expression as a sympy expression."""
    return sympy.Integer(value) if isinstance(value, int) else value


def integer_text(expr: Integer, name: Callable[[str], str] = str, floordiv: str = "//") -> str:
    """An expression in Python's syntax; `floordiv="/"` makes it C's.  `name` renames symbols."""
    if isinstance(expr, int):
        return str(expr)
    return _Printer(name, floordiv).text(expr, 0)


class _Printer:
    """Prints with the fewest parentheses; levels: 0 sum, 1 product, 2 atom."""

    def __init__(self, name: Callable[[str], str], floordiv: str) -> None:
        self.name = name
        self.floordiv = floordiv

    def text(self, expr: sympy.Expr, level: int) -> str:
        if expr.is_Symbol:
            return self.name(expr.name)
        if expr.is_Integer:
            return str(expr) if int(expr) >= 0 or level == 0 else f"({expr})"
        if expr.is_Add:
            return self.parenthesize(self.sum(expr), level > 0)
        if expr.is_Mul:
            parts = [self.text(arg, 1 if i == 0 else 2) for i, arg in enumerate(expr.args)]
            return self.parenthesize("*".join(parts), level > 1)
        if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
            return self.parenthesize("*".join([self.text(expr.base, 2)] * int(expr.exp)), level > 1)
        if isinstance(expr, (FloorDiv, Mod)):
            sign = self.floordiv if isinstance(expr, FloorDiv) else "%"
            a, b = expr.args
            return self.parenthesize(f"{self.text(a, 1)} {sign} {self.text(b, 2)}", level > 0)
        raise TypeError(f"not an index expression: {expr!r}")

    def sum(self, expr: sympy.Expr) -> str:
        text = ""
        for term in expr.as_ordered_terms():
            if term.could_extract_minus_sign() and text:
                text += f" - {self.text(-term, 1)}"
            else:
                text += f" + {self.text(term, 0)}" if text else self.text(term, 0)
        return text

    @staticmethod
    def parenthesize(text: str, needed: bool) -> str:
        return f"({text})" if needed else text


def evaluate_expr(expr: Integer, values: dict[str, Any]) -> Any:
    """The value of an expression: ints, or tensors by broadcasting."""
    if isinstance(expr, int):
        return expr
    if expr.is_Symbol:
        return values[expr.name]
    if expr.is_Integer:
        return int(expr)
    args = [evaluate_expr(arg, values) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return args[0] // args[1]
    if isinstance(expr, Mod):
        return args[0] % args[1]
    result = args[0]
    for arg in args[1:]:
        result = result + arg if expr.is_Add else result * arg if expr.is_Mul else result**arg
    return result
