"""Numbers of the program that are inputs of the graph instead of constants: ints and floats that were seen to change.

    self.scale = 0.5; then 0.7           first capture: EQUALS 0.5.  Second: the float f0, any value of which this entry serves

An int is a symbol of the SizeEnv, a float a symbolic float (`size_floats.float_symbol`); Python's control flow on them takes guards.  What
a torch function is given is a float symbol or a size: a float that the program has computed from given floats becomes an input of its own,
computed by Python from the same origins before the graph runs, so that its value is Python's to the last bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.origins import CallOf, Origin
from flambeau_prims.size_floats import (
    FloatExpr,
    as_float,
    float_of,
    is_float_symbol,
    number_hint,
)
from flambeau_prims.sizes_node import from_symbolic, to_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.record import DynamicDims

_INT32 = 2**31
_NAMES = {"math": math, "min": min, "max": max, "float": float, "abs": abs}


def is_symbolic(value: int | float, dynamic: DynamicDims, origin: Origin, argument: bool) -> bool:
    """Whether a number of the program is to be symbolic: one that changed, or with `dynamic=True` an int argument that may be a size."""
    if dynamic.mode is False:
        return False
    if type(value) is float:
        return dynamic.has_changed(origin)
    if not -_INT32 < value < _INT32:
        return False
    return dynamic.has_changed(origin) or (dynamic.mode is True and argument and value >= 2)


def lower_bound(value: int) -> int | None:
    """What is assumed of a symbolic int: as of a size, that it is neither 0 nor 1, if it looks like one; else nothing."""
    return 2 if value >= 2 else None


def given_floats(expr: FloatExpr) -> set[str]:
    """The floats of the program that a symbolic float is computed from."""
    return {name for name in expr.symbols() if is_float_symbol(name)}


def computed_origin(expr: FloatExpr) -> CallOf:
    """Where the value of a symbolic float comes from: its expression, evaluated on the origins of its symbols."""
    names = sorted(expr.symbols())
    symbols = expr.env.symbols
    function = _compiled(str(expr), names)
    return CallOf(function, tuple(symbols[name].source for name in names))  # type: ignore[misc]


_ARITHMETIC = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//", "__mod__": "%", "__pow__": "**",
}  # fmt: skip
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)


def arithmetic(method: str, left: Any, right: Any) -> Any:
    """`left op right` where one is a SymFloat, as Python has it (torch's own operators of SymFloats round differently, and check)."""
    op = _ARITHMETIC.get(method)
    if op is None or type(left) not in _NUMBERS or type(right) not in _NUMBERS:
        return NotImplemented
    a, b = (from_symbolic(side) if type(side) in _NUMBERS[3:] else side for side in (left, right))
    if op == "**" and isinstance(number_hint(a) ** number_hint(b), complex):
        return as_float(a) ** as_float(b)
    return to_symbolic(float_of(op, a, b))


def _compiled(text: str, names: list[str]) -> Callable[..., Any]:
    function = eval(f"lambda {', '.join(names)}: {text}", dict(_NAMES))
    function.__name__ = text
    return function  # type: ignore[no-any-return]
