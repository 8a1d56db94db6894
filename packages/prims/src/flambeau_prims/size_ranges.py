"""What is known of symbolic sizes: bounds, and the guards taken on the way.

Every fact is an interval (and excluded values) of a *form*: a polynomial without constant term,
divided by the gcd of its coefficients, its first coefficient positive. `3*s0 - 3*s1 - 6 >= 0` is
the fact `s0 - s1 in [2, inf)`. A question is decided by the intersection of the form's interval
with the interval that follows from the bounds of its atoms; what that leaves open is decided by the
hint, and the answer becomes both a fact and a guard.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau_prims.size_expressions import SizeGuard

if TYPE_CHECKING:
    from flambeau_prims.size_expressions import Atom, Bound, Expr, ExprEnv, Interval, Monomial, Size

Form: TypeAlias = "tuple[tuple[Monomial, int], ...]"


class Ranges:
    """The facts and guards of one SizeEnv."""

    def __init__(self, env: ExprEnv) -> None:
        self._env = env
        self._facts: dict[Form, Interval] = {}
        self._excluded: dict[Form, set[int]] = {}
        self._guards: dict[Any, SizeGuard] = {}
        self._bounds: dict[Expr, Interval] = {}
        """Memo of `bounds`, dropped whenever a fact is added."""

    def guards(self) -> list[SizeGuard]:
        """All guards in order; one implied by a later one (same form) is replaced by it."""
        return list(self._guards.values())

    # Questions that guard

    def is_zero(self, difference: Expr) -> bool:
        """Whether difference == 0."""
        lower, upper = self.bounds(difference)
        if lower == 0 == upper:
            return True
        if self.excludes_zero(difference):
            return False
        form, factor, constant = _normal(difference)
        value = -constant // factor
        if self._env.is_unbacked(difference):
            if value in (0, 1) and len(form) == 1:
                return False  # the general case: neither empty nor broadcast
            oracle = self._env.oracle
            zero = oracle is None or oracle.is_zero(difference)
            return zero if self.assume_zero(difference, zero) else not zero
        if difference.hint == 0:
            self._facts[form] = (value, value)
            self._drop_guards(form)
            self._record("==", form, value)
            self._env.substitute_from(difference)
            return True
        form_lower, form_upper = self._form_bounds(form)
        if form_lower == value:
            self._narrow(form, value + 1, None)
        elif form_upper == value:
            self._narrow(form, None, value - 1)
        else:
            self._excluded.setdefault(form, set()).add(value)
            self._record("!=", form, value)
        return False

    def is_non_negative(self, difference: Expr) -> bool:
        """Whether difference >= 0."""
        lower, upper = self.bounds(difference)
        if lower is not None and lower >= 0:
            return True
        if upper is not None and upper < 0:
            return False
        if self._env.is_unbacked(difference):
            # Only what a size must be is assumed without a statement: not negative.
            negative = -difference - 1
            if _is_bare(difference):
                return self.assume_non_negative(difference)
            if not isinstance(negative, int) and _is_bare(negative):
                return not self.assume_non_negative(negative)
            question = f"{difference} >= 0 is asked, which depends on the contents of a tensor"
            return self._env.asked(question).holds(">=", difference, 0, question)
        answer = difference.hint >= 0
        self._require_non_negative(difference if answer else -difference - 1)
        return answer

    def _require_non_negative(self, difference: Size) -> None:
        """Take difference >= 0 as a fact and a guard."""
        if isinstance(difference, int):
            return
        form, factor, constant = _normal(difference)
        if factor > 0:
            self._narrow(form, -(constant // factor), None)
        else:
            self._narrow(form, None, constant // -factor)

    # Unbacked sizes: facts without guards

    def assume(self, non_negative: Size) -> None:
        """Take non_negative >= 0 as given by what defines the symbols in it: nobody checks it."""
        self._require_non_negative(non_negative)

    def assume_non_negative(self, difference: Expr) -> bool:
        """Take difference >= 0 as a fact that the program checks; False if it cannot hold."""
        lower, upper = self.bounds(difference)
        if lower is not None and lower >= 0:
            return True
        if upper is not None and upper < 0:
            return False
        self._env.assumed.append(_two_sided(">=", self._env, difference, self._env.place()))
        self._require_non_negative(difference)
        return True

    def assume_zero(self, difference: Expr, zero: bool) -> bool:
        """Assume difference == 0 (or != 0), which the program checks; False if known false."""
        bounds = self.bounds(difference)
        if bounds == (0, 0) or self.excludes_zero(difference):
            return zero is (bounds == (0, 0))
        op = "==" if zero else "!="
        self._env.assumed.append(_two_sided(op, self._env, difference, self._env.place()))
        form, factor, constant = _normal(difference)
        value = -constant // factor
        self._bounds.clear()
        if zero:
            self._facts[form] = (value, value)
            self._env.substitute_from(difference)
        else:
            self._excluded.setdefault(form, set()).add(value)
        return True

    def only_value(self, size: Expr) -> int:
        """The one value that bounds leave for an unbacked size, else its value on this call."""
        lower, upper = self.bounds(size)
        if lower is None or lower != upper:
            question = f"the value of {size} is asked, which depends on the contents of a tensor"
            return int(self._env.asked(question).value(size, question))
        return lower

    def assume_lower(self, symbol: Expr, lower: int) -> None:
        """Take `symbol >= lower` as given; it is listed among the guards."""
        form, _, _ = _normal(symbol)
        self._narrow(form, lower, None)

    def record(self, key: Any, guard: SizeGuard) -> None:
        """Add a guard of another kind (symbolic floats) under a key that names the question."""
        self._guards[key] = replace(guard, where=guard.where or self._env.place())

    def _narrow(self, form: Form, lower: Bound, upper: Bound) -> None:
        """Take lower <= form <= upper as facts and guards."""
        quotient = self._quotient(form)
        if quotient is not None:
            # a // n >= k is a >= k*n, and a // n <= k is a < (k + 1)*n: guards on a imply one
            # another more often.
            dividend, divisor = quotient
            if lower is not None:
                self._require_non_negative(dividend - lower * divisor)
            if upper is not None:
                self._require_non_negative((upper + 1) * divisor - 1 - dividend)
            return
        interval = self._facts[form] = _meet(self._facts.get(form, (None, None)), (lower, upper))
        if lower is not None:
            self._record(">=", form, lower)
        if upper is not None:
            self._record("<=", form, upper)
        if interval[0] is not None and interval[0] == interval[1]:
            self._drop_guards(form)
            self._record("==", form, interval[0])
            difference = self._env.make({**dict(form), (): -interval[0]})
            if not isinstance(difference, int):
                self._env.substitute_from(difference)

    def _quotient(self, form: Form) -> tuple[Expr, int] | None:
        """(a, n) if the form is a bare `a // n` for a positive int n."""
        ((monomial, coefficient), *rest) = form
        if rest or coefficient != 1 or len(monomial) != 1:
            return None
        atom = self._env.atoms[monomial[0]]
        if atom.kind != "floordiv":
            return None
        dividend, divisor = atom.args
        if isinstance(divisor, int) and divisor > 0 and not isinstance(dividend, int):
            return (dividend, divisor)
        return None

    def _form_bounds(self, form: Form) -> Interval:
        expr = self._env.make(dict(form))
        return (expr, expr) if isinstance(expr, int) else self.bounds(expr)

    def _record(self, op: str, form: Form, value: int) -> None:
        self._bounds.clear()
        unbacked = self._env.unbacked_atoms
        if unbacked and any(
            self._env.is_unbacked(self._env.make({monomial: 1})) for monomial, _ in form
        ):
            return  # a fact that no caller can check
        left = self._env.make({m: c for m, c in form if c > 0})
        right = self._env.make({m: -c for m, c in form if c < 0})
        key = (op, form, value if op == "!=" else None)
        self._guards.pop(key, None)  # a tighter one is known from here on, not before
        if not isinstance(right, int) and (op, value) in ((">=", 1), ("<=", -1)):
            # Between two symbolic sides a strict relation reads better.
            self._guards[key] = SizeGuard(op[0], left, right, where=self._env.place())
        else:
            self._guards[key] = SizeGuard(op, left, right + value, where=self._env.place())

    def _drop_guards(self, form: Form) -> None:
        """Forget inequalities of a form that an equality is about to replace."""
        for key in [key for key in self._guards if key[1] == form]:
            del self._guards[key]

    # Bounds

    def excludes_zero(self, difference: Expr) -> bool:
        """Whether difference != 0 is certain."""
        lower, upper = self.bounds(difference)
        if (lower is not None and lower > 0) or (upper is not None and upper < 0):
            return True
        form, factor, constant = _normal(difference)
        return constant % factor != 0 or -constant // factor in self._excluded.get(form, ())

    def bounds(self, expr: Expr) -> Interval:
        """The tightest interval known to hold the value of an Expr."""
        known = self._bounds.get(expr)
        if known is None:
            # Stored first: an opaque atom's bounds may come back here through its arguments.
            self._bounds[expr] = (None, None)
            known = _meet(self._lower_and_upper(expr), self._by_facts(expr))
            self._bounds[expr] = known
        return known

    def _by_facts(self, expr: Expr) -> Interval:
        form, factor, constant = _normal(expr)
        lower, upper = self._facts.get(form, (None, None))
        if factor < 0:
            lower, upper = upper, lower
        return (
            None if lower is None else lower * factor + constant,
            None if upper is None else upper * factor + constant,
        )

    def _lower_and_upper(self, expr: Expr) -> Interval:
        lower = self._lower(dict(expr.terms))
        negated = self._lower({monomial: -coefficient for monomial, coefficient in expr.terms})
        return lower, None if negated is None else -negated

    def _lower(self, terms: dict[Monomial, int]) -> Bound:
        """A lower bound of a polynomial: each atom written as its lower bound plus a non-negative
        rest, then term by term.

        The shift makes `s0*s1 - s1` with s0, s1 >= 2 come out positive, which plain interval
        arithmetic cannot see.
        """
        total: dict[Monomial, int] = {}
        for monomial, coefficient in terms.items():
            product: dict[Monomial, int] = {(): coefficient}
            for index in monomial:
                shift = self.atom_bounds(self._env.atoms[index])[0]
                if shift is None:
                    return None
                product = _times_shifted(product, index, shift)
            for key, value in product.items():
                total[key] = total.get(key, 0) + value
        bound = 0
        for monomial, coefficient in total.items():
            if not monomial:
                bound += coefficient
            elif coefficient < 0:
                worst = coefficient
                for index in monomial:
                    lower, upper = self.atom_bounds(self._env.atoms[index])
                    if lower is None or upper is None:
                        return None
                    worst *= upper - lower
                bound += worst
        return bound

    def atom_bounds(self, atom: Atom) -> Interval:
        """The interval known to hold the value of an atom."""
        known = self._facts.get((((atom.index,), 1),), (None, None))
        return known if atom.kind == "symbol" else _meet(known, self._opaque_bounds(atom))

    def _opaque_bounds(self, atom: Atom) -> Interval:
        (a_lower, a_upper), (b_lower, b_upper) = (
            (arg, arg) if isinstance(arg, int) else self.bounds(arg) for arg in atom.args
        )
        if atom.kind == "min":
            uppers = [bound for bound in (a_upper, b_upper) if bound is not None]
            return _both(min, a_lower, b_lower), min(uppers, default=None)
        if atom.kind == "max":
            lowers = [bound for bound in (a_lower, b_lower) if bound is not None]
            return max(lowers, default=None), _both(max, a_upper, b_upper)
        if b_lower is None or b_lower <= 0:
            return None, None
        if atom.kind == "mod":
            top = None if b_upper is None else b_upper - 1
            if a_lower is not None and a_lower >= 0 and a_upper is not None:
                top = a_upper if top is None else min(top, a_upper)
            return 0, top
        return _floordiv_bounds((a_lower, a_upper), (b_lower, b_upper))


def _is_bare(difference: Expr) -> bool:
    """Whether an Expr is one symbol, or another single atom, itself."""
    ((monomial, coefficient), *rest) = difference.terms
    return not rest and coefficient == 1 and len(monomial) == 1


def _two_sided(op: str, env: ExprEnv, difference: Expr, where: str) -> SizeGuard:
    """`difference op 0` with only sums on either side."""
    left = env.make({m: c for m, c in difference.terms if c > 0})
    right = env.make({m: -c for m, c in difference.terms if c < 0})
    return SizeGuard(op, left, right, where=where)


def _floordiv_bounds(dividend: Interval, divisor: Interval) -> Interval:
    """Bounds of a // b for b >= 1."""
    (a_lower, a_upper), (b_lower, b_upper) = dividend, divisor
    assert b_lower is not None
    lower: Bound = None
    if a_lower is not None:
        if a_lower < 0:
            lower = a_lower // b_lower
        else:
            lower = 0 if b_upper is None else a_lower // b_upper
    upper: Bound = None
    if a_upper is not None:
        if a_upper >= 0:
            upper = a_upper // b_lower
        else:
            upper = -1 if b_upper is None else a_upper // b_upper
    return lower, upper


def _normal(expr: Expr) -> tuple[Form, int, int]:
    """(form, factor, constant) with expr = factor*form + constant; factor carries the sign."""
    constant = 0
    rest = []
    for term in expr.terms:
        if term[0]:
            rest.append(term)
        else:
            constant = term[1]
    factor = gcd(*(coefficient for _, coefficient in rest))
    if rest[0][1] < 0:
        factor = -factor
    if factor == 1:
        return tuple(rest), 1, constant
    return (
        tuple((monomial, coefficient // factor) for monomial, coefficient in rest),
        factor,
        constant,
    )


def _times_shifted(terms: dict[Monomial, int], index: int, shift: int) -> dict[Monomial, int]:
    """terms * (atom + shift)."""
    product: dict[Monomial, int] = {}
    for monomial, coefficient in terms.items():
        key = tuple(sorted((*monomial, index)))
        product[key] = product.get(key, 0) + coefficient
        product[monomial] = product.get(monomial, 0) + coefficient * shift
    return product


def _meet(a: Interval, b: Interval) -> Interval:
    lowers = [bound for bound in (a[0], b[0]) if bound is not None]
    uppers = [bound for bound in (a[1], b[1]) if bound is not None]
    return max(lowers, default=None), min(uppers, default=None)


def _both(pick: Any, a: Bound, b: Bound) -> Bound:
    return None if a is None or b is None else pick(a, b)
