"""Compute with integers of one or two bytes in 32 bits, for short loops.

    u0: u8 = load b0[512*i0 + r0]; u1: u8 = 15; u2: u8 = bitwise_and u0 u1; u3 = cast u2 :f32
->  staged  u0: u8 = load b0[512*i0 + r0]
    body    u0: i32 = load b0[512*i0 + r0]; u1: i32 = 15; u2: i32 = bitwise_and u0 u1; ...

GCC gives all vectors of a loop one size, and one of bytes at least 16 points: a loop over 16 bytes
computes floats in vectors of four. Separate loops write the staged loads to rows of int32, and the
body reads these. A result that may leave its dtype is wrapped, as that dtype does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.ir import Compute, Constant, Load, defined_name

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.ir import Body, Statement

NARROW = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.uint16: 16}
"""Dtypes -> their bits."""

CLOSED = frozenset(
    {"bitwise_and", "bitwise_or", "bitwise_xor", "shift_right", "where", "minimum", "maximum"}
)
"""Results of these are in the dtype's range if the operands are."""

WRAPPED = frozenset({"add", "sub", "mul", "neg", "bitwise_not", "shift_left"})
WIDE = torch.int32


def widen_integers(body: Body, along: sympy.Symbol, fixed: set[str]) -> tuple[Body, Body] | None:
    """The loads to stage and the body that reads them; None if there is no such load, or an
    operator is not known here. `along`: the loop's index; `fixed`: symbols that change between
    loops.
    """
    widener = _Widener(along, fixed)
    for statement in body:
        if not widener.step(statement):
            return None
    return (tuple(widener.staged), tuple(widener.body)) if widener.staged else None


class _Widener:
    def __init__(self, along: sympy.Symbol, fixed: set[str]) -> None:
        self.along = along
        self.fixed = fixed
        self.narrow: dict[str, torch.dtype] = {}
        """Values that are computed in 32 bits, and their own dtypes."""
        self.staged: list[Statement] = []
        self.body: list[Statement] = []

    def step(self, statement: Statement) -> bool:
        """Adds a statement; False if it cannot be."""
        name = defined_name(statement)
        dtype = getattr(statement, "dtype", None)
        if dtype not in NARROW:
            if isinstance(statement, Load) and statement.mask is not None:
                return False
            self.body.append(statement)
            return True
        assert name is not None
        match statement:
            case Constant():
                self.body.append(replace(statement, dtype=WIDE))
            case Load(mask=None, index=index) if self.along in index.free_symbols:
                if any(each.name in self.fixed for each in index.free_symbols):
                    return False
                self.staged.append(statement)
                self.body.append(replace(statement, dtype=WIDE))
            case Load(mask=None):
                own = f"{name}_narrow"
                self.body += [replace(statement, name=own), Compute(name, WIDE, "cast", (own,))]
            case Compute(op="cast", args=(source,)) if source in self.narrow:
                self.wrap(name, source, dtype)
            case Compute(op="cast"):
                own = f"{name}_narrow"
                self.body += [replace(statement, name=own), Compute(name, WIDE, "cast", (own,))]
            case Compute(op=op) if op in CLOSED:
                self.body.append(replace(statement, dtype=WIDE))
            case Compute(op=op) if op in WRAPPED:
                own = f"{name}_wide"
                self.body.append(replace(statement, name=own, dtype=WIDE))
                self.wrap(name, own, dtype)
            case _:
                return False
        self.narrow[name] = dtype
        return True

    def wrap(self, name: str, source: str, dtype: torch.dtype) -> None:
        """`name`: the number that a dtype makes of 32 bits."""
        bits = NARROW[dtype]
        if dtype.is_signed:
            by = f"{name}_by"
            self.body += [Constant(by, WIDE, 32 - bits),
                          Compute(f"{name}_high", WIDE, "shift_left", (source, by)),
                          Compute(name, WIDE, "shift_right", (f"{name}_high", by))]  # fmt: skip
        else:
            mask = f"{name}_mask"
            self.body += [Constant(mask, WIDE, (1 << bits) - 1),
                          Compute(name, WIDE, "bitwise_and", (source, mask))]  # fmt: skip
