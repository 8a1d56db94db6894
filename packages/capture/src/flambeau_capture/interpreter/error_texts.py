"""Errors that torch raises on fake tensors say what they say eagerly: sizes by number, where the text has symbols.

The size of tensor a (s1) must match ...    ->    The size of tensor a (3) must match ...        and a guard that s1 is 3
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flambeau_capture.reasons import GraphBreak
from flambeau_prims.sizes import as_int

if TYPE_CHECKING:
    from flambeau_prims.sizes import SizeEnv


def _expression(depth: int) -> str:
    """A pattern of sums and products of numbers and symbols, with this many levels of parentheses."""
    term = r"-?(?:\d+|[su]\d+)(?:\*\*\d+)?"
    if depth:
        term = rf"(?:{term}|-?\({_expression(depth - 1)}\))"
    return rf"{term}(?:(?: \+ | - |\*|//|%){term})*"


_EXPRESSION = re.compile(rf"(?:(?<![\w.])|(?<=\dx)){_expression(3)}(?=x[su]?\d|(?!\w|\.\d))")
"""Also in the shape of a matrix, `s0x3`."""
_OPAQUE = re.compile(r"\((?:[^()]|\(.*\))*(?://|%)(?:[^()]|\(.*\))*\)")
"""A division, which is printed in parentheses of its own; others are the text's."""
_SYMBOL = re.compile(r"(?:\b|(?<=\dx))[su]\d+(?=\b|x)")
_PRINTS_DATA = "its data is not allocated yet"


def as_eager(error: Exception, env: SizeEnv | None) -> None:
    """Give an error the text that it has eagerly, which the program may look at; GraphBreak where that takes what is in a tensor."""
    text = error.args[0] if len(error.args) == 1 else None
    if not isinstance(text, str):
        return
    if _PRINTS_DATA in text:
        raise GraphBreak("data-dependent", "a torch function raises an error that shows a tensor")
    if env is None or not any(name in env.symbols for name in _SYMBOL.findall(text)):
        return
    error.args = (_EXPRESSION.sub(lambda match: _in_numbers(match.group(), env), text),)


def _in_numbers(expression: str, env: SizeEnv) -> str:
    values = {
        name: as_int(env.bare_symbol(name))
        for name in _SYMBOL.findall(expression)
        if name in env.symbols
    }
    if not values or len(values) < len(set(_SYMBOL.findall(expression))):
        return expression
    number = str(eval(expression, {"__builtins__": {}}, values))
    is_the_texts = expression.startswith("(") and not _OPAQUE.fullmatch(expression)
    return f"({number})" if is_the_texts and expression.endswith(")") else number
