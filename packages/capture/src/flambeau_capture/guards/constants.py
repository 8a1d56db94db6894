"""Constants compared exactly and printed briefly, without running the user's code; and conditions
on symbolic sizes as the postfix code that the C core runs.

    4*s0 == s1 - 1   ->   CONSTANT 4, SYMBOL 0, MUL, SYMBOL 1, CONSTANT 1, SUB, EQ
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flambeau_capture import sources
from flambeau_capture.sources import HEAP_TYPE, Scope, Source
from flambeau_prims.size_floats import Condition, FloatExpr
from flambeau_prims.sizes import Expr, SizeEnv, ordered_terms

_CONSTANT_TYPES: tuple[type, ...] = (
    int,
    bool,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


def is_constant(value: Any) -> bool:
    """Whether `repr(value)` runs no user code and says all there is to know."""
    if type(value) in (tuple, frozenset, set):
        return all(is_constant(item) for item in value)
    return type(value) in _CONSTANT_TYPES


def constants_equal(a: Any, b: Any) -> bool:
    """Equality exact in type at every level and in the bits of floats (so 1 is not True, 0.0 is not
    -0.0, nan is nan).

    It runs no user code: objects of heap types are equal only to themselves.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return tuple.__len__(a) == tuple.__len__(b) and all(
            map(constants_equal, tuple.__iter__(a), tuple.__iter__(b))
        )
    if type(a).__flags__ & HEAP_TYPE:
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, complex):
        return constants_equal(a.real, b.real) and constants_equal(a.imag, b.imag)
    if isinstance(a, slice):
        return constants_equal((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, (set, frozenset)):
        return {(type(item), item) for item in a} == {(type(item), item) for item in b}
    return bool(a == b)


_PRINTED_BITS = 1024
"""Longer ints are not printed in base ten: Python is slow at it, and refuses very long ones."""


def brief(value: Any) -> str:
    """A short text of a value that runs no user code."""
    if value is sources.ABSENT:
        return "absent"
    if isinstance(value, int) and value.bit_length() > _PRINTED_BITS:
        return f"an int of {value.bit_length()} bits"
    if is_constant(value):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, type):
        return type_name(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"<function {value.__qualname__}>"
    if isinstance(value, torch.Tensor):
        return f"a {type_name(type(value))}"
    return f"<{type_name(type(value))} at {id(value):#x}>"


def type_name(cls: type) -> str:
    """The name of a type, qualified unless everyone knows where it is."""
    return (
        cls.__qualname__
        if cls.__module__ in ("builtins", "torch", "__main__", "torch.nn.parameter")
        else f"{cls.__module__}.{cls.__qualname__}"
    )


# ---------------------------------------------------------------- numbers


class ComputedNumber:
    """A symbolic float as a function of the values of its symbols, in the order of `names`."""

    __slots__ = ("__name__", "_function", "expr", "names")

    def __init__(self, expr: FloatExpr) -> None:
        self.expr = expr
        self.names = tuple(sorted(expr.symbols()))
        self.__name__ = str(expr)
        self._function = eval(f"lambda {', '.join(self.names)}: {expr}", dict(_ARITHMETIC))

    def __call__(self, *values: float) -> float:
        return self._function(*values)  # type: ignore[no-any-return]


_ARITHMETIC = {"math": math, "min": min, "max": max, "float": float, "abs": abs}
"""What the text of a symbolic float names."""


# ---------------------------------------------------------------- relations

EXTENT = SizeEnv().symbol(0, None, lower=None, name="(extent)")
"""Stands for a size or stride in the guard on its Expr; no capture has a symbol of this name."""


class Inexpressible(ValueError):
    """Postfix code has no operation for a part of the condition; Python evaluates it."""


@dataclass(frozen=True, eq=False)
class Relation:
    """A condition, and the source that each symbol's int (or float) is read from."""

    condition: Condition
    names: Mapping[str, Source]

    def in_users_terms(self) -> str:
        """The condition with each symbol called as the user calls it."""
        return self.condition.format({name: source.text() for name, source in self.names.items()})

    def holds(self, scope: Scope) -> bool:
        """Reference evaluation on one call."""
        return self.holds_for({name: source.load(scope) for name, source in self.names.items()})

    def holds_for(self, values: Mapping[str, int | float]) -> bool:
        """Whether the condition holds for these values of the symbols."""
        if any(type(value) is not int and type(value) is not float for value in values.values()):
            return False
        try:
            return self.condition.evaluate(values)
        except (ArithmeticError, ValueError):
            return False


_CODES = {
    "floordiv": "R_FLOORDIV", "mod": "R_MOD", "min": "R_MIN", "max": "R_MAX",
    "==": "R_EQ", "!=": "R_NE", "<": "R_LT", "<=": "R_LE", ">": "R_GT", ">=": "R_GE",
    "and": "R_AND", "or": "R_OR", "not": "R_NOT",
}  # fmt: skip


def postfix(
    condition: Condition, symbol: Callable[[str], int], codes: Mapping[str, int]
) -> tuple[int, ...]:
    """The postfix code of a condition; `symbol(name)` gives the index of a symbol, `codes` the
    relation codes of the C core.

    Raises Inexpressible for symbolic floats and for ints of more than 64 bits.
    """
    words: list[int] = []

    def emit(item: Any) -> None:
        if isinstance(item, Condition):
            emit_all(item.args, _CODES[item.op])
        elif isinstance(item, Expr):
            emit_sum(item)
        elif isinstance(item, int) and -(1 << 63) <= item < 1 << 63:
            words.extend((codes["R_CONSTANT"], int(item)))
        else:
            raise Inexpressible(str(item))

    def emit_all(operands: Sequence[Any], code: str) -> None:
        for position, operand in enumerate(operands):
            emit(operand)
            if position > 0 or len(operands) == 1:
                words.append(codes[code])

    def emit_sum(size: Expr) -> None:
        for position, (monomial, coefficient) in enumerate(ordered_terms(size)):
            factors = [abs(coefficient)] if abs(coefficient) != 1 or not monomial else []
            emit_factors([*factors, *(size.env.atoms[index] for index in monomial)])
            if position > 0:
                words.append(codes["R_ADD" if coefficient > 0 else "R_SUB"])
            elif coefficient < 0:
                words.append(codes["R_NEG"])

    def emit_factors(factors: Sequence[Any]) -> None:
        for position, factor in enumerate(factors):
            if isinstance(factor, int):
                emit(factor)
            elif factor.kind == "symbol":
                words.extend((codes["R_SYMBOL"], symbol(factor.name)))
            else:
                emit_all(factor.args, _CODES[factor.kind])
            if position > 0:
                words.append(codes["R_MUL"])

    emit(condition)
    return tuple(words)
