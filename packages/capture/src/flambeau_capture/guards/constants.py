"""Constants compared exactly, and values told briefly; neither runs code of the user's.

Conditions on symbolic sizes, as Python text over symbols and as the postfix programs that the C
core runs.

"s0*4 == s1 - 1"   ->   SYMBOL 0, CONSTANT 4, MUL, SYMBOL 1, CONSTANT 1, SUB, EQ
"""

from __future__ import annotations

import ast
import functools
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flambeau_capture import sources
from flambeau_capture.sources import Scope, Source

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


HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: types made by class statements (or by a C extension's spec), whose
`__eq__` may be the user's.
"""


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
"""Longer ints are not printed in base ten: that is slow, and refused from
`sys.get_int_max_str_digits()` on.
"""


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


# ---------------------------------------------------------------- relations

_NAMES = {"__builtins__": {}, "math": math, "min": min, "max": max, "abs": abs, "float": float}
"""What the text of a condition may call."""


class Inexpressible(ValueError):
    """The condition holds something postfix programs have no operation for (floats, say); it is
    evaluated in Python.
    """


@dataclass(frozen=True, eq=False)
class Relation:
    """A condition: Python text over names, and the source that each name's int (or float) is read
    from.
    """

    text: str
    names: Mapping[str, Source]

    def in_users_terms(self) -> str:
        """The text with each name replaced by what the user calls it."""
        texts = {name: source.text() for name, source in self.names.items()}
        return re.sub(r"[A-Za-z_]\w*", lambda match: texts.get(match[0], match[0]), self.text)

    def holds(self, scope: Scope) -> bool:
        """Reference evaluation on one call."""
        return self.holds_for(**{name: source.load(scope) for name, source in self.names.items()})

    def holds_for(self, **values: int | float) -> bool:
        """Whether the condition holds for these values of the names."""
        if any(type(value) is not int and type(value) is not float for value in values.values()):
            return False
        try:
            return bool(eval(_compiled(self.text), dict(_NAMES), values))
        except (ArithmeticError, ValueError):
            return False


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    return compile(text, "<size guard>", "eval")


_BINARY: dict[type, str] = {
    ast.Add: "R_ADD",
    ast.Sub: "R_SUB",
    ast.Mult: "R_MUL",
    ast.FloorDiv: "R_FLOORDIV",
    ast.Mod: "R_MOD",
    ast.Pow: "R_POW",
}
_COMPARE: dict[type, str] = {
    ast.Eq: "R_EQ",
    ast.NotEq: "R_NE",
    ast.Lt: "R_LT",
    ast.LtE: "R_LE",
    ast.Gt: "R_GT",
    ast.GtE: "R_GE",
}


def postfix(text: str, symbol: Callable[[str], int], codes: Mapping[str, int]) -> tuple[int, ...]:
    """The postfix program of a condition; `symbol(name)` gives the index of a name, `codes` the
    relation codes of the C core.

    Raises Inexpressible where the text holds more than integer arithmetic, comparisons, and/or/not,
    min and max.
    """
    words: list[int] = []

    def emit(node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() | int() as value) if -(1 << 63) <= value < 1 << 63:
                words.extend((codes["R_CONSTANT"], int(value)))
            case ast.Name(id=name):
                words.extend((codes["R_SYMBOL"], symbol(name)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                emit_all((left, right), _BINARY[type(op)])
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                emit_all((left, right), _COMPARE[type(op)])
            case ast.BoolOp(op=op, values=values):
                emit_all(values, "R_AND" if isinstance(op, ast.And) else "R_OR")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                emit_all((operand,), "R_NEG")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                emit_all((operand,), "R_NOT")
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=[]) if (
                len(args) > 1
            ):
                emit_all(args, "R_MIN" if name == "min" else "R_MAX")
            case _:
                raise Inexpressible(ast.unparse(node))

    def emit_all(operands: Any, code: str) -> None:
        for at, operand in enumerate(operands):
            emit(operand)
            if at > 0 or len(operands) == 1:
                words.append(codes[code])

    emit(ast.parse(text, mode="eval").body)
    return tuple(words)
