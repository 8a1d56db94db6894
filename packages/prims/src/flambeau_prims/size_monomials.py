"""Products and quotients of the monomials that symbolic sizes are sums of.

s0*s0*s1 = (0, 0, 1);   divide_monomial((0, 0, 1), (0,)) = (0, 1)
"""

from __future__ import annotations

from typing import TypeAlias

Monomial: TypeAlias = tuple[int, ...]
"""Indices into `ExprEnv.atoms`, ascending, repeated for powers. () is the constant term."""
Terms: TypeAlias = dict[Monomial, int]


def multiply_terms(left: Terms, right: Terms) -> Terms:
    """The product of two sums of monomials, each with its coefficient."""
    total: Terms = {}
    for a, x in left.items():
        for b, y in right.items():
            key = tuple(sorted(a + b))
            total[key] = total.get(key, 0) + x * y
    return total


def graded(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """The graded order of terms, as a sort key."""
    return degree_and_order(term[0])


def degree_and_order(monomial: Monomial) -> tuple[int, Monomial]:
    """The graded order of monomials, as a sort key."""
    return len(monomial), monomial


def divide_monomial(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """monomial / divisor, or None if it is no monomial."""
    rest = list(monomial)
    for index in divisor:
        if index not in rest:
            return None
        rest.remove(index)
    return tuple(rest)
