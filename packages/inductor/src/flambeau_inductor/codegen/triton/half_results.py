"""Which values of a kernel reach memory in half precision only: these may be computed less exactly
than float32 is, because rounding hides it.

    v3 = div v1 v2; v4 = cast v3 :bf16; store b2 v4    ->  {v1, v2, v3, v4}
    ...; v5 = floor v3, or store b3 v3                 ->  {v4}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, defined_name, index_of, operands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import Body, Statement

HALF = frozenset({torch.float16, torch.bfloat16})

STEPS = frozenset({"floor", "ceil", "round", "trunc", "sign", "floor_divide", "trunc_divide",
                   "fmod", "remainder"})  # fmt: skip
"""Operators that make a small difference a large one."""


def only_for_halves(body: Body) -> set[str]:
    """The values that reach memory, and whatever else reads them, in half precision only."""
    wide: set[str] = set()
    for statement in reversed(body):
        narrows = isinstance(statement, Compute) and (
            statement.dtype in HALF
            if statement.op == "cast"
            else statement.dtype is torch.float32
            and statement.name not in wide
            and statement.op not in STEPS
        )
        if not narrows:
            wide.update(operands(statement))
    names = {defined_name(statement) for statement in body}
    return {name for name in names if name is not None and name not in wide}


def without_unread(body: Sequence[Statement]) -> Body:
    """The statements without the arithmetic that nothing reads."""
    read: set[str] = set()
    kept: list[Statement] = []
    for statement in reversed(body):
        if not isinstance(statement, Compute) or statement.name in read:
            kept.append(statement)
            index = index_of(statement)
            read.update(operands(statement), () if index is None else free_names(index))
    return tuple(reversed(kept))
