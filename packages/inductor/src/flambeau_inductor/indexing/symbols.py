"""Where a program finds its symbolic sizes: among its int inputs, and in the shapes of its tensor
inputs.

x: f32[s0, 12*s1], s2  ->  symbols: s0 = x.shape[0], d1 = x.shape[1], s2 = input 1; and s1 is
written (d1//12)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.graph import Value
from flambeau_prims.size_floats import is_float_symbol
from flambeau_prims.sizes import Expr, current
from flambeau_runtime.program import Symbol

if TYPE_CHECKING:
    from collections.abc import Sequence


class SymbolSources:
    """The program's symbols, and `names`: the text that stands for each symbol of the graph."""

    def __init__(self, inputs: Sequence[Value | Expr]) -> None:
        self.symbols: list[Symbol] = []
        self.names: dict[str, str] = {}
        for number, value in enumerate(inputs):
            name = symbol_name(value)
            if name is not None and name not in self.names:
                self.names[name] = name
                self.symbols.append(Symbol(name, number, None, is_float_symbol(name)))
        sized = [
            (number, dim, current(size))
            for number, value in enumerate(inputs)
            if isinstance(value, Value)
            for dim, size in enumerate(value.spec.shape)
            if isinstance(size, Expr)
        ]
        for number, dim, size in sized:
            name = symbol_name(size)
            if name is not None and name not in self.names:
                self.names[name] = name
                self.symbols.append(Symbol(name, number, dim))
        for number, dim, size in sized:
            self._solve(size, number, dim)

    def _solve(self, size: object, number: int, dim: int) -> None:
        """Use a dim that is a multiple of one unknown symbol, plus a constant."""
        if not isinstance(size, Expr):
            return
        unknown = size.symbols() - self.names.keys()
        terms = dict(size.terms)
        constant = terms.pop((), 0)
        if len(unknown) != 1 or len(terms) != 1:
            return
        ((monomial, coefficient),) = terms.items()
        if len(monomial) != 1 or size.env.atoms[monomial[0]].kind != "symbol":
            return
        made = f"d{len(self.symbols)}"
        self.symbols.append(Symbol(made, number, dim))
        shifted = made if constant == 0 else f"({made} - {constant})"
        self.names[unknown.pop()] = shifted if coefficient == 1 else f"({shifted}//{coefficient})"


def symbol_name(size: object) -> str | None:
    """The name of a size that is just a symbol."""
    if isinstance(size, Expr) and len(size.terms) == 1:
        ((monomial, coefficient),) = size.terms
        if coefficient == 1 and len(monomial) == 1 and size.env.atoms[monomial[0]].kind == "symbol":
            return size.env.atoms[monomial[0]].name
    return None
