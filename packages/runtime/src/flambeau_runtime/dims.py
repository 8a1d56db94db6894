"""Size expressions (`program.Dim`): parsed once, then evaluated in Python or as postfix code by the
C executor.

    "s0*12 + 1"  ->  [LOAD s0, CONST 12, MUL, CONST 1, ADD]

A Dim is Python syntax restricted to names, integers, + - * // %, unary minus, min(a, b) and max(a,
b); anything else is refused, so a Program read from disk can never make this package evaluate code.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau_runtime.program import Dim

# The numbers are those of the enum in csrc/executor.c.
CONST, LOAD, ADD, SUB, MUL, DIV, MOD, MIN, MAX, NEG = range(10)

MAX_DEPTH = 60
"""The C executor's expression stack holds 64 values."""

_BINARY = {ast.Add: ADD, ast.Sub: SUB, ast.Mult: MUL, ast.FloorDiv: DIV, ast.Mod: MOD}
_CALLS = {"min": MIN, "max": MAX}

Postfix = tuple[tuple[int, "int | str"], ...]
"""(opcode, operand) pairs; the operand is the constant of CONST, the symbol's name of LOAD, else 0.
"""


@lru_cache(maxsize=16384)
def postfix(text: str) -> Postfix:
    """The postfix code of an expression; ValueError if it is not one."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a size expression: {text!r}") from error
    code: list[tuple[int, int | str]] = []
    _emit(tree, code, text)
    depth = deepest = 0
    for opcode, _ in code:
        depth += 1 if opcode in (CONST, LOAD) else 0 if opcode == NEG else -1
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise ValueError(f"a size expression nested deeper than {MAX_DEPTH}: {text!r}")
    return tuple(code)


def _emit(node: ast.expr, code: list[tuple[int, int | str]], text: str) -> None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        code.append((CONST, node.value))
    elif isinstance(node, ast.Name):
        code.append((LOAD, node.id))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _emit(node.operand, code, text)
        code.append((NEG, 0))
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        _emit(node.left, code, text)
        _emit(node.right, code, text)
        code.append((_BINARY[type(node.op)], 0))
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
        and len(node.args) >= 2
        and not node.keywords
    ):
        _emit(node.args[0], code, text)
        for arg in node.args[1:]:
            _emit(arg, code, text)
            code.append((_CALLS[node.func.id], 0))
    else:
        raise ValueError(f"not allowed in a size expression: {ast.unparse(node)!r} in {text!r}")


def symbols_of(dim: Dim) -> frozenset[str]:
    """The names a Dim mentions."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(str(operand) for opcode, operand in postfix(dim) if opcode == LOAD)


def evaluate(dim: Dim, symbols: Mapping[str, int]) -> int:
    """The value of a Dim, given its symbols' values."""
    if isinstance(dim, int):
        return dim
    stack: list[int] = []
    for opcode, operand in postfix(dim):
        if opcode == CONST:
            stack.append(operand)  # type: ignore[arg-type]
        elif opcode == LOAD:
            stack.append(symbols[operand])  # type: ignore[index]
        elif opcode == NEG:
            stack[-1] = -stack[-1]
        else:
            right = stack.pop()
            stack[-1] = _apply(opcode, stack[-1], right)
    return stack[0]


def difference(left: Dim, right: Dim) -> Dim:
    """left - right."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return 0 if left == right else left if right == 0 else f"{left} - ({right})"


def _apply(opcode: int, left: int, right: int) -> int:
    if opcode == ADD:
        return left + right
    if opcode == SUB:
        return left - right
    if opcode == MUL:
        return left * right
    if opcode == DIV:
        return left // right
    if opcode == MOD:
        return left % right
    return min(left, right) if opcode == MIN else max(left, right)
