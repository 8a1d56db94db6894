"""The expressions that symbolic sizes are: interned integer polynomials, and their arithmetic.

An Expr is a sum of integer multiples of monomials; a monomial is a product of atoms; an atom is a
symbol or an opaque `a // b`, `a % b`, `min(a, b)`, `max(a, b)`. All Exprs and atoms are interned in
their environment (`sizes.SizeEnv`), which one compile (one thread) owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, isfinite
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from flambeau_prims.size_monomials import (
    Monomial,
    Terms,
    degree_and_order,
    divide_monomial,
    graded,
    multiply_terms,
)
from flambeau_prims.unsupported import DataDependentSize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Size: TypeAlias = "int | Expr"
Bound: TypeAlias = "int | None"
"""None: unbounded on that side."""
Interval: TypeAlias = "tuple[Bound, Bound]"


class Atom:
    """A factor of monomials: a "symbol", or a "floordiv", "mod", "min" or "max" of two Sizes."""

    __slots__ = ("args", "hint", "index", "kind", "name", "source")

    def __init__(self, index: int, kind: str, args: tuple[Size, ...], hint: int) -> None:
        self.index = index
        self.kind = kind
        self.args = args
        self.hint = hint
        self.name = ""
        self.source: object = None

    def format(self, names: Mapping[str, str]) -> str:
        """The atom as a Python expression, parenthesised for products; `names` renames symbols."""
        if self.kind == "symbol":
            return names.get(self.name, self.name)
        left, right = self.args
        if self.kind in ("min", "max"):
            return f"{self.kind}({format_size(left, names)}, {format_size(right, names)})"
        sign = "//" if self.kind == "floordiv" else "%"
        return f"({_factor_text(left, names)}{sign}{_factor_text(right, names)})"

    def __repr__(self) -> str:
        return self.format({})


class Expr:
    """An interned, non-constant integer polynomial, compared by identity (see `SizeEnv`)."""

    __slots__ = ("__weakref__", "env", "hint", "symint", "terms")

    env: ExprEnv
    hint: int
    terms: tuple[tuple[Monomial, int], ...]
    symint: Any
    """The torch.SymInt around this Expr, made at first need (`to_symint`)."""

    def __add__(self, other: Size) -> Size:
        return self.env.binary(_add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        return self.env.binary(_sub, self, other)

    def __rsub__(self, other: Size) -> Size:
        return self.env.binary(_rsub, self, other)

    def __mul__(self, other: Size) -> Size:
        return self.env.binary(_mul, self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return self.env.binary(_mul, self, -1)

    def __pos__(self) -> Size:
        return self

    def __floordiv__(self, other: Size) -> Size:
        return self.env.binary(_floordiv, self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return self.env.binary(_rfloordiv, self, other)

    def __mod__(self, other: Size) -> Size:
        return self.env.binary(_mod, self, other)

    def __rmod__(self, other: Size) -> Size:
        return self.env.binary(_rmod, self, other)

    def __divmod__(self, other: Size) -> tuple[Size, Size]:
        return self // other, self % other

    def __pow__(self, other: int) -> Size:
        if type(other) is not int or other < 0:
            return NotImplemented
        power: Size = 1
        for _ in range(other):
            power = self * power
        return power

    def _no_relation(self, *_: object) -> bool:
        raise TypeError(
            f"the symbolic size {self} has no truth value or order; ask "
            f"flambeau_prims.sizes.eq/ne/lt/le/gt/ge or known_*"
        )

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _no_relation

    def _no_int(self) -> int:
        raise TypeError(
            f"the symbolic size {self} is no int; flambeau_prims.sizes.as_int(size) "
            f"specialises it with a guard"
        )

    __int__ = __index__ = _no_int

    @property
    def symbol(self) -> str | None:
        """The name of the symbol that this is, or None if it is no bare symbol."""
        ((monomial, coefficient), *rest) = self.terms
        if rest or coefficient != 1 or len(monomial) != 1:
            return None
        return self.env.atoms[monomial[0]].name or None

    def symbols(self) -> set[str]:
        """Names of all symbols that occur, those inside opaque atoms included."""
        result: set[str] = set()
        for index in self.env.atoms_in(self):
            atom = self.env.atoms[index]
            if atom.kind == "symbol":
                result.add(atom.name)
        return result

    def format(self, names: Mapping[str, str]) -> str:
        """A Python expression; `names` renames symbols."""
        atoms = self.env.atoms
        text = ""
        for monomial, coefficient in ordered_terms(self):
            factors = [atoms[index].format(names) for index in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            product = "*".join(factors)
            if not text:
                text = f"-{product}" if coefficient < 0 else product
            else:
                text += f" - {product}" if coefficient < 0 else f" + {product}"
        return text

    def __repr__(self) -> str:
        return self.format({})


@dataclass(frozen=True, eq=False)
class SizeGuard:
    """`lhs op rhs`, op one of == != <= >= < >; a condition on the symbols under which the traced
    program is right.

    The sides are Sizes, or symbolic floats (`size_floats.FloatExpr`), of which neither `a < b` nor
    `a >= b` may hold: `holds` False says that the relation does not. `where` is the line of the
    traced program that asked.
    """

    op: str
    lhs: Any
    rhs: Any
    holds: bool = True
    where: str = ""

    def format(self, names: Mapping[str, str]) -> str:
        """The guard as Python text, with symbols called as `names` says: `x.shape[0] <= 512`."""
        lhs, rhs = (
            _side_text(side) if isinstance(side, (int, float)) else side.format(names)
            for side in (self.lhs, self.rhs)
        )
        text = f"{lhs} {self.op} {rhs}"
        return text if self.holds else f"not ({text})"

    def __str__(self) -> str:
        return self.format({})


def _side_text(number: float) -> str:
    if isinstance(number, float) and not isfinite(number):
        return "math.nan" if number != number else f"{number:+}".replace("inf", "math.inf")
    return repr(number)


class Facts(Protocol):
    """What is known of the sizes of one environment (`size_ranges.Ranges`)."""

    def bounds(self, expr: Expr) -> Interval: ...
    def atom_bounds(self, atom: Atom) -> Interval: ...
    def excludes_zero(self, difference: Expr) -> bool: ...
    def is_zero(self, difference: Expr) -> bool: ...
    def is_non_negative(self, difference: Expr) -> bool: ...
    def only_value(self, size: Expr) -> int: ...
    def assume(self, non_negative: Size) -> None: ...
    def assume_zero(self, difference: Expr, zero: bool) -> bool: ...
    def assume_non_negative(self, difference: Expr) -> bool: ...
    def assume_lower(self, symbol: Expr, lower: int) -> None: ...
    def record(self, key: Any, guard: SizeGuard) -> None: ...
    def guards(self) -> list[SizeGuard]: ...


class Oracle(Protocol):
    """Answers questions about unbacked numbers (`size_oracle.Oracle`)."""

    answered: list[SizeGuard]

    def value(self, number: Any, question: str) -> Any: ...
    def holds(self, op: str, a: Any, b: Any, question: str) -> bool: ...
    def is_zero(self, difference: Expr) -> bool: ...


UNBACKED_HINT = 64
"""What an unbacked size is taken to be where a guess is good enough: neither 0 nor 1."""


class ExprEnv:
    """The base of `sizes.SizeEnv`: the tables that Exprs are interned in, and what a trace notes.

    `ranges` is set by the subclass.
    """

    ranges: Facts

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.symbols: dict[str, Atom] = {}
        self.specs: dict[Any, Any] = {}
        """Interned Specs with sizes of this env (`spec.py`)."""
        self.rule_cache: dict[Any, Any] = {}
        """What `rules.registry.infer` found for arguments with sizes of this env."""
        self.place: Callable[[], str] = str
        """Says where the traced program is ("model.py:12"), for the guards taken there."""
        self._interned: dict[tuple[tuple[Monomial, int], ...], Expr] = {}
        self._opaque: dict[tuple[str, Size, Size], Atom] = {}
        self._memo: dict[tuple[Callable[..., Size], Expr, Size], Size] = {}
        self._substitutions: dict[int, Size] = {}
        self._multiples: dict[tuple[Size, int], list[tuple[int, int]]] = {}
        """(x, n) -> pairs of a constant c and a step m: (x + c)//m is a multiple of n//m."""
        self.floats: dict[Any, Any] = {}
        """Interned symbolic floats of this env (`size_floats.py`)."""
        self.unbacked_atoms: set[int] = set()
        """Indices of the unbacked symbols."""
        self.assumed: list[SizeGuard] = []
        """Assumed relations of unbacked symbols; the program checks them as it runs."""
        self.oracle: Oracle | None = None
        """Answers questions about unbacked numbers beyond their ranges, during a trace that can."""
        self.refuse: Callable[[set[str], str], None] | None = None
        """Called with the symbols and the question when a watched program asks about sizes."""
        self.specialised: dict[Any, str] = {}
        """Sizes made concrete, with a guard, and by what (for reports)."""
        self.stated: set[str] = set()
        """Places where the program itself says what holds of its sizes."""
        self._is_unbacked: dict[Expr, bool] = {}
        self.float_ranges: dict[str, tuple[float, float]] = {}
        """By name: the least and the greatest value of unbacked floats of which that is known."""
        self.fixed_floats: dict[str, float] = {}
        """Float arguments, by name, that are specialised: the program is right for these bits."""

    def symbol(
        self, hint: int, source: object, *, lower: int | None = 2, prefix: str = "s", name: str = ""
    ) -> Expr:
        """A new symbol that is assumed (a guard says so) to be at least `lower`; `source` is what
        the caller knows it by.

        `name` is an identifier that no other symbol has; without one the symbol is `prefix` and a
        number.
        """
        atom = self._new_atom("symbol", (), hint)
        number = len(self.symbols)
        while not name or name in self.symbols:
            name, number = f"{prefix}{number}", number + 1
        atom.name = name
        atom.source = source
        self.symbols[atom.name] = atom
        result = self.make({(atom.index,): 1})
        assert isinstance(result, Expr)
        if lower is not None:
            self.ranges.assume_lower(result, lower)
        return result

    def unbacked(self, *, lower: int | None = None, upper: Size | None = None) -> Expr:
        """A new symbol that the program defines as it runs, within these bounds."""
        result = self.symbol(UNBACKED_HINT, None, lower=None, prefix="u")
        self.unbacked_atoms.update(self.atoms_in(result))
        if lower is not None:
            self.ranges.assume_lower(result, lower)
        if upper is not None:
            self.ranges.assume(upper - result)
        return result

    def asked(self, question: str) -> Oracle:
        """The oracle; DataDependentSize, with the question, where there is none."""
        if self.oracle is None:
            raise DataDependentSize(question)
        return self.oracle

    def is_unbacked(self, size: Size) -> bool:
        """Whether an unbacked symbol occurs in a size."""
        if not self.unbacked_atoms or not isinstance(size, Expr):
            return False
        cached = self._is_unbacked.get(size)
        if cached is None:
            cached = self._is_unbacked[size] = not self.unbacked_atoms.isdisjoint(
                self.atoms_in(size)
            )
        return cached

    def bare_symbol(self, name: str) -> Expr:
        """A symbol itself, also after an equality has replaced it in all later results."""
        return self._interned[(((self.symbols[name].index,), 1),)]

    @property
    def guards(self) -> list[SizeGuard]:
        """The relations that the traced program depends on, symbols' lower bounds among them."""
        return self.ranges.guards()

    def evaluate(self, size: Size, values: Mapping[str, int]) -> int:
        """The value of a size for these values of the symbols (by name)."""
        if not isinstance(size, Expr):
            return size
        total = 0
        for monomial, coefficient in size.terms:
            product = coefficient
            for index in monomial:
                product *= self._evaluate_atom(self.atoms[index], values)
            total += product
        return total

    def _evaluate_atom(self, atom: Atom, values: Mapping[str, int]) -> int:
        if atom.kind == "symbol":
            return values[atom.name]
        return _OPAQUE[atom.kind](*(self.evaluate(arg, values) for arg in atom.args))

    # What arithmetic is built from

    def binary(self, op: Callable[[ExprEnv, Expr, Size], Size], left: Expr, right: Size) -> Size:
        """`op(left, right)`, remembered."""
        kind = type(right)
        if kind is not int and kind is not Expr:
            if kind is not bool:
                return NotImplemented
            right = int(right)
        key = (op, left, right)
        cached = self._memo.get(key)
        if cached is None:
            cached = self._memo[key] = op(self, left, right)
        return cached

    def make(self, terms: Terms) -> Size:
        """The interned Expr, or int, with these terms, known equalities substituted."""
        if self._substitutions:
            terms = self._substitute(terms)
        key = tuple(sorted([term for term in terms.items() if term[1]]))
        if not key:
            return 0
        if len(key) == 1 and not key[0][0]:
            return key[0][1]
        known = self._interned.get(key)
        if known is None:
            known = object.__new__(Expr)
            known.env, known.terms, known.symint = self, key, None
            known.hint = 0
            for monomial, product in key:
                for index in monomial:
                    product *= self.atoms[index].hint
                known.hint += product
            self._interned[key] = known
        return known

    def opaque(self, kind: str, left: Size, right: Size) -> Size:
        """The atom `kind(left, right)` as a Size."""
        key = (kind, left, right)
        atom = self._opaque.get(key)
        same = self._same_quotient(left, right) if atom is None and kind == "floordiv" else None
        if same is not None:
            return same
        if atom is None:
            divides_by_zero = kind in ("floordiv", "mod") and hint_of(right) == 0
            hint = 0 if divides_by_zero else _OPAQUE[kind](hint_of(left), hint_of(right))
            atom = self._new_atom(kind, (left, right), hint)
            self._opaque[key] = atom
        return self.make({(atom.index,): 1})

    def _new_atom(self, kind: str, args: tuple[Size, ...], hint: int) -> Atom:
        atom = Atom(len(self.atoms), kind, args, hint)
        self.atoms.append(atom)
        return atom

    def atoms_in(self, size: Size) -> set[int]:
        """Indices of all atoms that occur in a size, nested ones included."""
        result: set[int] = set()
        pending = [size]
        while pending:
            item = pending.pop()
            if isinstance(item, Expr):
                for monomial, _ in item.terms:
                    for index in monomial:
                        if index not in result:
                            result.add(index)
                            pending.extend(self.atoms[index].args)
        return result

    # Equalities

    def substitute_from(self, difference: Expr) -> None:
        """Given `difference` == 0, solve it exactly for an atom, and rewrite all later results."""
        multiple = _multiple_in(difference)
        self._solve(difference)
        if multiple:
            self._join_quotients(*multiple)

    def _solve(self, difference: Expr) -> None:
        for monomial, coefficient in sorted(difference.terms, reverse=True):
            if len(monomial) != 1 or abs(coefficient) != 1:
                continue
            (index,) = monomial
            rest = {other: -c * coefficient for other, c in difference.terms if other != monomial}
            solution = self.make(rest)
            if index not in self.atoms_in(solution):
                self._memo.clear()
                self._substitutions[index] = solution
                self._rebuild_opaque(index)
                return

    def _join_quotients(self, size: Expr, divisor: int) -> None:
        """Given that `size` is a multiple, equate quotients of it plus constants: (size + 1)//2 is
        size//2 if size is even.
        """
        inner, step = _as_quotient(self, size) or (size, 1)
        terms, divisor = terms_of(inner), divisor * step
        constant = terms.pop((), 0)
        dividend = self.make(terms)
        self._multiples.setdefault((dividend, divisor), []).append((constant % divisor, step))
        for atom in list(self._opaque.values()):
            same = self._same_quotient(*atom.args) if atom.kind == "floordiv" else None
            difference = 0 if same is None else self.make({(atom.index,): 1}) - same
            if isinstance(difference, Expr):
                self._solve(difference)

    def _same_quotient(self, left: Size, right: Size) -> Size | None:
        """The quotient left//right by a dividend that is a known multiple, if one is as good."""
        if not self._multiples or type(right) is not int:
            return None
        terms = terms_of(current(left))
        constant = terms.pop((), 0)
        dividend = self.make(terms)
        for first, step in self._multiples.get((dividend, right), ()):
            whole, more = divmod(constant - first, right)
            if 0 < more <= right - step:
                return (dividend + first) // right + whole
        return None

    def _rebuild_opaque(self, index: int) -> None:
        """Substitute each opaque atom over atom `index` by its value after the replacement."""
        for atom in list(self._opaque.values()):
            if atom.index in self._substitutions or not any(
                index in self.atoms_in(arg) for arg in atom.args
            ):
                continue
            left, right = (
                self.make(dict(a.terms)) if isinstance(a, Expr) else a for a in atom.args
            )
            value = _REBUILD[atom.kind](left, right)
            if atom.index not in self.atoms_in(value):
                self._substitutions[atom.index] = value

    def _substitute(self, terms: Terms) -> Terms:
        replaced = self._substitutions
        if not any(index in replaced for monomial in terms for index in monomial):
            return terms
        total: Terms = {}
        for monomial, coefficient in terms.items():
            product: Terms = {
                tuple(index for index in monomial if index not in replaced): coefficient
            }
            for index in monomial:
                if index in replaced:
                    product = multiply_terms(product, terms_of(replaced[index]))
            for key, value in product.items():
                total[key] = total.get(key, 0) + value
        return self._substitute(total)


def _multiple_in(difference: Expr) -> tuple[Expr, int] | None:
    """The dividend and the divisor, if no remainder is left: x%n == 0, or x == n*(x//n)."""
    env = difference.env
    for monomial, coefficient in difference.terms:
        atom = env.atoms[monomial[0]] if len(monomial) == 1 else None
        rest = difference - env.make({monomial: coefficient})
        if atom is None:
            continue
        size, divisor = atom.args if atom.kind == "mod" else (rest, abs(coefficient))
        if type(divisor) is not int or divisor < 2 or not isinstance(size, Expr):
            continue
        if atom.kind == "mod" and rest == 0:
            return size, divisor
        dividend = env.make({term: -c if coefficient > 0 else c for term, c in size.terms})
        if atom.kind != "floordiv" or not isinstance(dividend, Expr):
            continue
        if dividend // divisor is env.make({monomial: 1}):
            return dividend, divisor
    return None


# Arithmetic on terms


def ordered_terms(size: Expr) -> list[tuple[Monomial, int]]:
    """The terms as they are written: those of high degree first."""
    return sorted(size.terms, key=lambda term: (-len(term[0]), term[0]))


def terms_of(size: Size) -> Terms:
    """A size as a fresh dict of terms."""
    if isinstance(size, Expr):
        return dict(size.terms)
    return {(): size} if size else {}


def _add(env: ExprEnv, left: Expr, right: Size) -> Size:
    total = terms_of(left)
    for monomial, coefficient in terms_of(right).items():
        total[monomial] = total.get(monomial, 0) + coefficient
    return env.make(total)


def _sub(env: ExprEnv, left: Expr, right: Size) -> Size:
    total = terms_of(left)
    for monomial, coefficient in terms_of(right).items():
        total[monomial] = total.get(monomial, 0) - coefficient
    return env.make(total)


def _rsub(env: ExprEnv, left: Expr, right: Size) -> Size:
    return right + -left


def _mul(env: ExprEnv, left: Expr, right: Size) -> Size:
    if not isinstance(right, Expr):
        return env.make({monomial: coefficient * right for monomial, coefficient in left.terms})
    return env.make(multiply_terms(terms_of(left), terms_of(right)))


def _floordiv(env: ExprEnv, left: Size, right: Size) -> Size:
    left, right = current(left), current(right)
    if hint_of(right) == 0 and not env.is_unbacked(right):
        return hint_of(left) // 0  # raises what Python says of ints
    quotient, remainder = _divide(env, left, right)
    if type(remainder) is int and type(right) is int:
        return quotient + remainder // right
    remainder, right = _cancel(env, remainder, right)
    if type(right) is int and (right == 1 or type(remainder) is int):
        return quotient + remainder // right
    if known_le(0, remainder) and known_lt(remainder, right):
        return quotient
    if known_lt(remainder, 0) and known_le(0, remainder + right):
        return quotient - 1
    nested = _nested_floordiv(env, remainder, right)
    return quotient + (env.opaque("floordiv", remainder, right) if nested is None else nested)


def _rfloordiv(env: ExprEnv, left: Expr, right: Size) -> Size:
    return _floordiv(env, right, left)


def _mod(env: ExprEnv, left: Size, right: Size) -> Size:
    left, right = current(left), current(right)
    if hint_of(right) == 0 and not env.is_unbacked(right):
        return hint_of(left) % 0
    _, remainder = _divide(env, left, right)
    if type(remainder) is int and type(right) is int:
        return remainder % right
    if type(remainder) is int and remainder == 0:
        return 0
    if known_le(0, remainder) and known_lt(remainder, right):
        return remainder
    if known_lt(remainder, 0) and known_le(0, remainder + right):
        return remainder + right
    return env.opaque("mod", remainder, right)


def _rmod(env: ExprEnv, left: Expr, right: Size) -> Size:
    return _mod(env, right, left)


def _divide(env: ExprEnv, left: Size, right: Size) -> tuple[Size, Size]:
    """Sizes q, r with left = q*right + r; q as large as polynomial division can make it."""
    quotient: Terms = {}
    if not isinstance(right, Expr):
        remainder: Terms = {}
        for monomial, coefficient in terms_of(left).items():
            quotient[monomial], remainder[monomial] = divmod(coefficient, right)
        return env.make(quotient), env.make(remainder)
    rest = terms_of(left)
    lead, lead_coefficient = max(right.terms, key=graded)
    while True:
        # Each step replaces a term by smaller ones (in graded order), so this ends.
        candidates = [
            m
            for m, c in rest.items()
            if c and c % lead_coefficient == 0 and divide_monomial(m, lead) is not None
        ]
        if not candidates:
            break
        monomial = max(candidates, key=degree_and_order)
        factor = divide_monomial(monomial, lead)
        assert factor is not None
        times = rest[monomial] // lead_coefficient
        quotient[factor] = quotient.get(factor, 0) + times
        for other, coefficient in right.terms:
            key = tuple(sorted(factor + other))
            rest[key] = rest.get(key, 0) - times * coefficient
    return env.make(quotient), env.make(rest)


def _cancel(env: ExprEnv, left: Size, right: Size) -> tuple[Size, Size]:
    """Both sizes without their common factors that are known to be positive."""
    above, below = terms_of(left), terms_of(right)
    if not above:
        return 0, 1
    common = gcd(*above.values(), *below.values())
    shared = list(next(iter(below)))
    for monomial in (*above, *below):
        rest = list(monomial)
        kept = []
        for index in shared:
            if index in rest:
                rest.remove(index)
                kept.append(index)
        shared = kept
    shared = [index for index in shared if (env.ranges.atom_bounds(env.atoms[index])[0] or 0) > 0]
    if common == 1 and not shared:
        return left, right
    divisor = tuple(shared)

    def divided(terms: Terms) -> Size:
        return env.make(
            {divide_monomial(monomial, divisor): c // common for monomial, c in terms.items()}  # type: ignore[misc]
        )

    return divided(above), divided(below)


def _nested_floordiv(env: ExprEnv, left: Size, right: Size) -> Size | None:
    """(x//n + c) // m as (x + c*n) // (n*m) for positive ints n, m; None for another form."""
    if type(right) is not int or right <= 0 or not isinstance(left, Expr):
        return None
    inner = _as_quotient(env, left)
    return None if inner is None else inner[0] // (inner[1] * right)


def _as_quotient(env: ExprEnv, size: Expr) -> tuple[Size, int] | None:
    """x//n + c as the dividend x + c*n and the divisor n, a positive int; None for another form."""
    terms = terms_of(size)
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, coefficient),) = terms.items()
    if coefficient != 1 or len(monomial) != 1 or env.atoms[monomial[0]].kind != "floordiv":
        return None
    inner, divisor = env.atoms[monomial[0]].args
    if type(divisor) is not int or divisor <= 0:
        return None
    return inner + constant * divisor, divisor


_OPAQUE: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def current(size: Size) -> Size:
    """The size with the equalities applied that were found since it was made."""
    return size.env.make(dict(size.terms)) if isinstance(size, Expr) else size


def hint_of(size: Size) -> int:
    """The value of a size for the sizes seen while tracing."""
    return size.hint if isinstance(size, Expr) else size


def format_size(size: Size, names: Mapping[str, str]) -> str:
    """A size as a Python expression, symbols called as `names` says."""
    return size.format(names) if isinstance(size, Expr) else str(size)


def _factor_text(size: Size, names: Mapping[str, str]) -> str:
    text = format_size(size, names)
    simple = size.symbol is not None if isinstance(size, Expr) else size >= 0
    return text if simple else f"({text})"


# What is certain


def known_eq(a: Size, b: Size) -> bool:
    """Whether a == b is certain for all sizes that the guards taken so far admit."""
    if a is b:
        return True
    difference = a - b
    if isinstance(difference, Expr):
        return difference.env.ranges.bounds(difference) == (0, 0)
    return difference == 0


def known_ne(a: Size, b: Size) -> bool:
    """Whether a != b is certain."""
    difference = a - b
    if isinstance(difference, Expr):
        return difference.env.ranges.excludes_zero(difference)
    return difference != 0


def known_ge(a: Size, b: Size) -> bool:
    """Whether a >= b is certain."""
    difference = a - b
    if isinstance(difference, Expr):
        lower = difference.env.ranges.bounds(difference)[0]
        return lower is not None and lower >= 0
    return difference >= 0


def known_le(a: Size, b: Size) -> bool:
    """Whether a <= b is certain."""
    return known_ge(b, a)


def known_gt(a: Size, b: Size) -> bool:
    """Whether a > b is certain."""
    return known_ge(a, b + 1)


def known_lt(a: Size, b: Size) -> bool:
    """Whether a < b is certain."""
    return known_ge(b, a + 1)


def size_max(a: Size, b: Size) -> Size:
    """The greater size; an opaque `max(a, b)` if the order is unknown (no guard is taken)."""
    a, b = current(a), current(b)
    if known_ge(a, b):
        return a
    if known_ge(b, a):
        return b
    return _env_of(a, b).opaque("max", *_ordered(a, b))


def size_min(a: Size, b: Size) -> Size:
    """The smaller size; an opaque `min(a, b)` if the order is unknown (no guard is taken)."""
    a, b = current(a), current(b)
    if known_ge(a, b):
        return b
    if known_ge(b, a):
        return a
    return _env_of(a, b).opaque("min", *_ordered(a, b))


def _ordered(a: Size, b: Size) -> tuple[Size, Size]:
    """The operands of a commutative atom in canonical order."""
    return (a, b) if str(a) <= str(b) else (b, a)


def _env_of(a: Size, b: Size) -> ExprEnv:
    symbolic = a if isinstance(a, Expr) else b
    assert isinstance(symbolic, Expr)
    return symbolic.env


_REBUILD: dict[str, Callable[[Size, Size], Size]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": size_min,
    "max": size_max,
}
