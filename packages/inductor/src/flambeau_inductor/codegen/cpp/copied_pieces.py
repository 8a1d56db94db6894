"""A row of an operand in pieces along which it is read element by element.

    load b0[3712*(r0 // 192) + r0 % 192]  ->  pieces of 192:  load b0[3712*piece + r0 - 192*piece]

Windows of an image are such rows. A loop that divides in each step is no vector loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import FloorDiv, Mod, symbol
from flambeau_inductor.ir import Load, index_of

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.ir import Axis, Body

PIECE = "piece"
"""The number of a piece, in C++."""

SHORTEST = 8
"""Shorter pieces gain nothing."""


def cut_into_pieces(body: Body, axis: Axis) -> tuple[int, Body] | None:
    """The length of pieces, and the body in one of them; None if the axis is not divided, or by
    lengths that have no common pieces.
    """
    own = axis.symbol
    divided = {
        call
        for statement in body
        if (index := index_of(statement)) is not None
        for call in index.atoms(FloorDiv, Mod)
        if call.args[0] == own
    }
    if not divided or not all(call.args[1].is_Integer for call in divided):
        return None
    length = min(int(call.args[1]) for call in divided)
    if length < SHORTEST or any(int(call.args[1]) % length for call in divided):
        return None
    piece = symbol(PIECE)

    def known(call: sympy.Expr) -> sympy.Expr:
        count = call.args[1] / length
        if isinstance(call, FloorDiv):
            return FloorDiv(piece, count)
        return own - length * piece + length * Mod(piece, count)

    mapping = {call: known(call) for call in divided}
    result = []
    for statement in body:
        index = index_of(statement)
        if index is not None and own in index.free_symbols:
            if not isinstance(statement, Load):
                return None
            index = index.xreplace(mapping)
            statement = replace(statement, index=index)
        result.append(statement)
    return length, tuple(result)
