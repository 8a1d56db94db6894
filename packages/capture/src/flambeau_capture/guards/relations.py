"""Conditions on symbolic sizes, as Python text over symbols and as the postfix programs that the C core runs.

"s0*4 == s1 - 1"   ->   SYMBOL 0, CONSTANT 4, MUL, SYMBOL 1, CONSTANT 1, SUB, EQ
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flambeau_capture.origins import Origin, Scope

_NAMES = {"__builtins__": {}, "math": math, "min": min, "max": max, "abs": abs, "float": float}
"""What the text of a condition may call."""


class Inexpressible(ValueError):
    """The condition holds something postfix programs have no operation for (floats, say); it is evaluated in Python."""


@dataclass(frozen=True, eq=False)
class Relation:
    """A condition: Python text over names, and the origin that each name's int (or float) is read from."""

    text: str
    names: Mapping[str, Origin]

    def in_users_terms(self) -> str:
        """The text with each name replaced by what the user calls it."""
        texts = {name: origin.text() for name, origin in self.names.items()}
        return re.sub(r"[A-Za-z_]\w*", lambda match: texts.get(match[0], match[0]), self.text)

    def holds(self, scope: Scope) -> bool:
        """Reference evaluation on one call."""
        return self.holds_for(**{name: origin.load(scope) for name, origin in self.names.items()})

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
    ast.Add: "R_ADD", ast.Sub: "R_SUB", ast.Mult: "R_MUL", ast.FloorDiv: "R_FLOORDIV", ast.Mod: "R_MOD", ast.Pow: "R_POW",
}  # fmt: skip
_COMPARE: dict[type, str] = {
    ast.Eq: "R_EQ", ast.NotEq: "R_NE", ast.Lt: "R_LT", ast.LtE: "R_LE", ast.Gt: "R_GT", ast.GtE: "R_GE",
}  # fmt: skip


def postfix(text: str, symbol: Callable[[str], int], codes: Mapping[str, int]) -> tuple[int, ...]:
    """The postfix program of a condition; `symbol(name)` gives the index of a name, `codes` the relation codes of the C core.

    Raises Inexpressible where the text holds more than integer arithmetic, comparisons, and/or/not, min and max.
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
