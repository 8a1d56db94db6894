"""Symbolic sizes of torch's ShapeEnv and of our SizeEnv, translated into one another.

    s77*2 + s27//2 (sympy, in a torch.SymInt)  <->  2*s77 + s27//2 (flambeau_prims.sizes.Expr)

Symbols are translated by tables of their names. torch's expressions are read by the names of their
classes: nothing of torch's compiler, and no sympy, is imported.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from flambeau_prims import sizes
from flambeau_prims.size_floats import PLAIN, SYMBOLIC_FUNCTIONS, Condition, FloatExpr, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flambeau_prims.size_floats import Number
    from flambeau_prims.size_ranges import SizeGuard
    from flambeau_prims.sizes import Expr, Size


class Untranslatable(Exception):
    """An expression of torch's for which our sizes have no form."""


_ASSOCIATIVE: dict[str, Callable[[Size, Size], Size]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Max": sizes.size_max,
    "Min": sizes.size_min,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": sizes.ceil_div,
    "PythonMod": operator.mod,
    "Mod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "PowByNatural": operator.pow,
    "Pow": operator.pow,
    "Identity": operator.pos,
}
"""By the name of a sympy class: what it says of sizes."""

_RELATIONS = {
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=",
    "StrictGreaterThan": ">", "GreaterThan": ">=",
}  # fmt: skip
_CONNECTIVES = {"And": "and", "Or": "or", "Not": "not"}


def size_from_torch(expression: Any, symbols: Mapping[str, Expr]) -> Size:
    """Our size for a sympy expression over `symbols` (by torch's names), or Untranslatable."""
    if expression.is_Symbol:
        if expression.name not in symbols:
            raise Untranslatable(f"the symbol {expression}")
        return current(symbols[expression.name])
    if expression.is_Integer:
        return int(expression)
    kind = type(expression).__name__
    args = [size_from_torch(arg, symbols) for arg in expression.args]
    if args and kind in _ASSOCIATIVE:
        return functools.reduce(_ASSOCIATIVE[kind], args)
    if kind not in _FUNCTIONS:
        raise Untranslatable(f"{kind} in {expression}")
    try:
        return _FUNCTIONS[kind](*args)  # type: ignore[no-any-return]
    except TypeError:  # a symbolic or negative exponent
        raise Untranslatable(str(expression)) from None


def condition_from_torch(expression: Any, symbols: Mapping[str, Expr]) -> Condition | bool:
    """Our condition for a sympy relation, or a combination of some; raises Untranslatable."""
    kind = type(expression).__name__
    if kind in ("BooleanTrue", "BooleanFalse"):
        return kind == "BooleanTrue"
    if kind in _CONNECTIVES:
        args = (condition_from_torch(arg, symbols) for arg in expression.args)
        return Condition(_CONNECTIVES[kind], *args)
    if kind in _RELATIONS:
        sides = (size_from_torch(arg, symbols) for arg in expression.args)
        return Condition(_RELATIONS[kind], *sides)
    raise Untranslatable(f"{kind} in {expression}")


def take_guards(expressions: Iterable[Any], symbols: Mapping[str, Expr]) -> None:
    """Take each guard of a ShapeEnv, given as a sympy expression, in the SizeEnv of `symbols`.

    A guard that cannot be translated specialises the symbols in it: what was compiled is right for
    the values that they have.
    """
    for expression in expressions:
        try:
            decide(condition_from_torch(expression, symbols))
        except Untranslatable:
            for symbol in sorted(expression.free_symbols, key=str):
                if symbol.name in symbols:
                    sizes.as_int(current(symbols[symbol.name]))


def give_guards(guards: Iterable[SizeGuard], symbols: Mapping[str, Any]) -> None:
    """Have torch's ShapeEnv take guards of ours; `symbols` are its SymInts by our names."""
    for guard in guards:
        sides = (number_to_torch(guard.lhs, symbols), number_to_torch(guard.rhs, symbols))
        # Asking a SymBool is how a ShapeEnv takes a guard.
        if bool(PLAIN[guard.op](*sides)) is not guard.holds:
            raise AssertionError(f"the guard {guard} does not hold in torch's ShapeEnv")


def size_to_torch(size: Size, symbols: Mapping[str, Any]) -> Any:
    """A size as an int or torch.SymInt."""
    return size.env.evaluate(size, symbols) if isinstance(size, sizes.Expr) else size


def number_to_torch(number: Number, symbols: Mapping[str, Any]) -> Any:
    """A torch number for a size or float; one without a form is specialised, guarded by torch."""
    if not isinstance(number, FloatExpr):
        return size_to_torch(number, symbols) if isinstance(number, sizes.Expr) else number
    if number.op in SYMBOLIC_FUNCTIONS and not number.op.startswith("math."):
        function = SYMBOLIC_FUNCTIONS[number.op]
        return function(*(number_to_torch(arg, symbols) for arg in number.args))
    return number.evaluate({name: int(symbols[name]) for name in number.symbols()})


def current(symbol: Expr) -> Size:
    """A symbol with all applied that its SizeEnv has learnt since: perhaps an int."""
    return symbol.env.make(dict(symbol.terms))
