"""Sizes, symbolic floats and conditions as text, read back without running the text as Python.

    evaluate("2*batch + 1", {"batch": 3})          7
    holds("batch <= 512", {"batch": 3})            True
    read_size("2*batch", {"batch": <Expr>})        <Expr 2*batch>

The grammar is what `format` of Expr, FloatExpr and Condition writes: a subset of Python's.

    condition = "not" condition | condition ("and" | "or") condition | number relation number
    relation  = "==" | "!=" | "<" | "<=" | ">" | ">="
    number    = symbol | int | float | "-" number | number operator number | function(number, ...)
    operator  = "+" | "-" | "*" | "//" | "%" | "/" | "**"
    function  = "min" | "max" | "abs" | "float" | "math.sqrt" | ... (`size_floats.FUNCTIONS`)

Sizes have no "/" and, of the functions, min and max.
"""

from __future__ import annotations

import ast
import functools
import math
from typing import TYPE_CHECKING, Any

from flambeau_prims import sizes
from flambeau_prims.size_floats import (
    FUNCTIONS,
    PLAIN,
    Condition,
    FloatExpr,
    condition_hint,
    float_of,
)
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau_prims.size_floats import Number
    from flambeau_prims.sizes import Size


class SizeTextError(ValueError):
    """The text is no arithmetic over sizes."""


_SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
_CONSTANTS = {"math.nan": math.nan, "math.inf": math.inf}
_MAX_POWER = 16


def names_in(text: str) -> set[str]:
    """The symbols that a text mentions."""
    own = {"math", *FUNCTIONS}
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)} - own


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """The number (or truth) of an expression for these values of its symbols."""
    result = _read(_parsed(text), values)
    return condition_hint(result) if isinstance(result, Condition) else result


def holds(text: str, values: Mapping[str, Any]) -> bool:
    """Whether a condition holds; one that cannot be computed (a division by zero) does not."""
    try:
        return bool(evaluate(text, values))
    except SizeTextError:
        raise
    except (ArithmeticError, ValueError):
        return False


def read_size(text: str, symbols: Mapping[str, Size]) -> Size:
    """The Size that a text means over these symbols."""
    size = _read(_parsed(text), symbols)
    if not isinstance(size, Expr) and type(size) is not int:
        raise SizeTextError(f"{text!r} is no size")
    return size


def read_number(text: str, symbols: Mapping[str, Number]) -> Number:
    """The Size or symbolic float that a text means over these symbols."""
    number: Number = _read(_parsed(text), symbols)
    if isinstance(number, (bool, Condition)):
        raise SizeTextError(f"{text!r} is no number over sizes")
    return number


def read_condition(text: str, symbols: Mapping[str, Number]) -> Condition:
    """The Condition that a text means over these symbols."""
    condition = _read(_parsed(text), symbols)
    if not isinstance(condition, Condition):
        raise SizeTextError(f"{text!r} is no condition on sizes")
    return condition


def assume(text: str, symbols: Mapping[str, Number]) -> None:
    """Guard on a condition that holds for the symbols' hints; conditions on floats are ignored."""
    condition = _read(_parsed(text), symbols)
    if isinstance(condition, Condition) and condition.op in PLAIN:
        if all(type(side) in (int, Expr) for side in condition.args):
            condition.ask()


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SizeTextError(f"{text!r} is no expression over sizes") from error


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="math"), attr=attr):
            return f"math.{attr}"
    raise SizeTextError(f"{ast.unparse(node)!r} is no size, float or condition of sizes")


def _read(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name() | ast.Attribute():
            name = _name(node)
            if name in symbols:
                return symbols[name]
            if name in _CONSTANTS:
                return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _apply("*", -1, _read(operand, symbols))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _read(operand, symbols)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Condition("not", _read(operand, symbols))
        case ast.BoolOp(op=op, values=parts):
            return Condition(_SIGNS[type(op)], *[_read(part, symbols) for part in parts])
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SIGNS:
            return Condition(_SIGNS[type(op)], _read(left, symbols), _read(right, symbols))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            return _apply(_SIGNS[type(op)], _read(left, symbols), _read(right, symbols))
        case ast.Call(func=function, args=args, keywords=[]) if _name(function) in FUNCTIONS:
            return _apply(_name(function), *[_read(arg, symbols) for arg in args])
    raise SizeTextError(f"{ast.unparse(node)!r} is no size, float or condition of sizes")


def _apply(op: str, *args: Any) -> Any:
    """`op` of numbers: exact on plain numbers and on sizes, else a symbolic float."""
    if any(isinstance(arg, Condition) for arg in args):
        raise SizeTextError(f"{op!r} of a condition is no size, float or condition of sizes")
    if not any(isinstance(arg, (Expr, FloatExpr)) for arg in args):
        return FUNCTIONS[op](*args)
    if all(type(arg) in (int, Expr) for arg in args):
        if op in ("+", "-", "*", "//", "%"):
            return FUNCTIONS[op](*args)
        if op in ("min", "max"):
            return functools.reduce(sizes.size_min if op == "min" else sizes.size_max, args)
        if op == "**" and type(args[1]) is int and 0 <= args[1] <= _MAX_POWER:
            return args[0] ** args[1]
    return float_of(op, *args)
