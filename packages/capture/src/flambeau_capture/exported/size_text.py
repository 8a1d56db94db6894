"""Sizes and conditions on sizes as text: evaluated, and read back as Exprs, without running the
text as Python.

evaluate("2*batch + 1", {"batch": 3})          7
holds("batch <= 512", {"batch": 3})            True
read_size("2*batch", {"batch": <Expr>})        <Expr 2*batch>
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from typing import TYPE_CHECKING, Any

from flambeau_capture.graphs.size_nodes import BINARY
from flambeau_prims import sizes
from flambeau_prims.size_floats import float_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flambeau_prims.sizes import Size


class SizeTextError(ValueError):
    """The text is no arithmetic over sizes."""


_COMPARE: dict[type, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]] = {
    ast.Eq: (operator.eq, sizes.eq),
    ast.NotEq: (operator.ne, sizes.ne),
    ast.Lt: (operator.lt, sizes.lt),
    ast.LtE: (operator.le, sizes.le),
    ast.Gt: (operator.gt, sizes.gt),
    ast.GtE: (operator.ge, sizes.ge),
}
_MATH = (
    "sqrt",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "acos",
    "asin",
    "atan",
    "log2",
    "exp",
    "log",
    "floor",
    "ceil",
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "abs": abs, "float": float,
    **{f"math.{name}": getattr(math, name) for name in _MATH},
}  # fmt: skip
_CONSTANTS = {"math.nan": math.nan, "math.inf": math.inf}


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SizeTextError(f"{text!r} is no expression over sizes") from error


def names_in(text: str) -> set[str]:
    """The symbols that a text mentions."""
    own = {"math", *_FUNCTIONS}
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)} - own


def evaluate(text: str, values: Mapping[str, int]) -> Any:
    """The number (or truth) of an expression for these values of its symbols."""
    return _value(_parsed(text), values)


def holds(text: str, values: Mapping[str, int]) -> bool:
    """Whether a condition holds; one that cannot be computed (a division by zero) does not."""
    try:
        return bool(evaluate(text, values))
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, SizeTextError):
            raise
        return False


def read_size(text: str, symbols: Mapping[str, Size]) -> Size:
    """The Size that a text means over these symbols."""
    found = _size(_parsed(text), symbols)
    if not isinstance(found, sizes.Expr) and type(found) is not int:
        raise SizeTextError(f"{text!r} is no size")
    return found


def read_number(text: str, symbols: Mapping[str, Size]) -> Any:
    """The Size or symbolic float that a text means over these symbols."""
    return _size_or_float(_parsed(text), symbols)


def assume(text: str, symbols: Mapping[str, Size]) -> None:
    """Take a condition that holds for the symbols' hints as a guard; conditions on floats are left
    out.
    """
    tree = _parsed(text)
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return
    try:
        left, right = (_size(side, symbols) for side in (tree.left, tree.comparators[0]))
    except SizeTextError:
        return
    _COMPARE[type(tree.ops[0])][1](left, right)


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="math"), attr=attr):
            return f"math.{attr}"
    raise SizeTextError(f"{ast.unparse(node)!r} has no meaning in a size")


def _value(node: ast.expr, values: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name() | ast.Attribute():
            name = _name(node)
            if name in values:
                return values[name]
            if name in _CONSTANTS:
                return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, values)
        case ast.BoolOp(op=op, values=parts):
            decide = all if isinstance(op, ast.And) else any
            return decide(bool(_value(part, values)) for part in parts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)][0](_value(left, values), _value(right, values))
        case ast.Call(func=function, args=args, keywords=[]) if _name(function) in _FUNCTIONS:
            return _FUNCTIONS[_name(function)](*(_value(arg, values) for arg in args))
    raise SizeTextError(f"{ast.unparse(node)!r} has no meaning in a size")


def _size(node: ast.expr, symbols: Mapping[str, Size]) -> Size:
    match node:
        case ast.Constant(value=int() as value) if type(value) is int:
            return value
        case ast.Name(id=name) if name in symbols:
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_size(operand, symbols)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
            if 0 <= power <= 16:
                return _size(left, symbols) ** power
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            if not isinstance(op, (ast.Div, ast.Pow)):
                found: Size = BINARY[type(op)](_size(left, symbols), _size(right, symbols))
                return found
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[left, right], keywords=[]):
            choose = sizes.size_min if name == "min" else sizes.size_max
            return choose(_size(left, symbols), _size(right, symbols))
    raise SizeTextError(f"{ast.unparse(node)!r} is no size")


_SIGNS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


def _float(node: ast.expr, symbols: Mapping[str, Size]) -> Any:
    """A part of a symbolic float, as `FloatExpr.format` writes it."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            operands = [_size_or_float(side, symbols) for side in (left, right)]
            return float_of(_SIGNS[type(op)], *operands)
        case ast.Call(func=function, args=args, keywords=[]) if _name(function) in _FUNCTIONS:
            return float_of(_name(function), *(_size_or_float(arg, symbols) for arg in args))
    raise SizeTextError(f"{ast.unparse(node)!r} is no number over sizes")


def _size_or_float(node: ast.expr, symbols: Mapping[str, Size]) -> Any:
    try:
        return _size(node, symbols)
    except SizeTextError:
        return _float(node, symbols)
