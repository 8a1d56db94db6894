"""From the sizes of a prims graph to sympy and on to a Program's Dims.

Each atom of a size (a symbol, or an opaque `a // b`, `a % b`, `min`, `max`) becomes one sympy
symbol that bears the atom's text, so kernels see polynomials over opaque nonnegative integers,
whose values a launch passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import evaluate_expr, integer_text, symbol
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flambeau_prims.spec import Size


class SizeTable:
    """The sizes of one graph: converts them, and knows the hints of the symbols it made."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        """`names`: the text that stands for a symbol in Dims, where it is not its own name."""
        self.names = names or {}
        self.hints: dict[str, int] = {}
        self._converted: dict[Size, sympy.Expr] = {}

    def convert(self, size: Size) -> sympy.Expr:
        """A size as a sympy expression, equalities that were found since it was made applied."""
        if not isinstance(size, Expr):
            return sympy.Integer(size)
        cached = self._converted.get(size)
        if cached is None:
            cached = self._converted[size] = self._convert(size)
        return cached

    def convert_all(self, sizes: Iterable[Size]) -> tuple[sympy.Expr, ...]:
        """Several sizes."""
        return tuple([self.convert(size) for size in sizes])

    def _convert(self, size: Expr) -> sympy.Expr:
        env = size.env
        current = env.make(dict(size.terms))
        if not isinstance(current, Expr):
            return sympy.Integer(current)
        total = []
        for monomial, coefficient in current.terms:
            factors: list[sympy.Expr] = [sympy.Integer(coefficient)]
            for index in monomial:
                atom = env.atoms[index]
                text = atom.format(self.names)
                self.hints[text] = atom.hint
                factors.append(symbol(text))
            total.append(sympy.Mul(*factors))
        return sympy.Add(*total)

    def hint(self, expr: sympy.Expr | int) -> int:
        """The value of an expression for the sizes seen while tracing."""
        return int(evaluate_expr(expr, self.hints))

    @staticmethod
    def dim(expr: sympy.Expr | int) -> int | str:
        """An expression as a Program's Dim."""
        if isinstance(expr, int):
            return expr
        return int(expr) if expr.is_Integer else integer_text(expr)

    def dim_of(self, size: Size) -> int | str:
        """A size as a Program's Dim."""
        return self.dim(self.convert(size))

    def dims_of(self, sizes: Iterable[Size]) -> tuple[int | str, ...]:
        """Several sizes as Dims."""
        return tuple([self.dim_of(size) for size in sizes])
