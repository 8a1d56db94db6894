"""Which values of a kernel reach memory in half precision only: these may be computed less exactly
than float32 is, because rounding hides it.

    v3 = div v1 v2; v4 = cast v3 :bf16; store b2 v4    ->  {v1, v2, v3, v4}
    ...; v5 = floor v3, v5 = sqrt v3, or store b3 v3   ->  {v4}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, Store, defined_name, index_of, operands
from flambeau_inductor.scalar_ops import DISCONTINUOUS, SINGULAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import Body, Statement

HALF = frozenset({torch.float16, torch.bfloat16})


def only_for_halves(body: Body) -> set[str]:
    """The values that reach memory, and whatever else reads them, in half precision only."""
    wide: set[str] = set()
    exact: set[str] = set()
    """What is read otherwise than by a store: the same in half precision, too."""
    for statement in reversed(body):
        if not _narrows(statement, wide, exact):
            wide.update(operands(statement))
            if not isinstance(statement, Store):
                exact.update(operands(statement))
        elif isinstance(statement, Compute) and statement.op in SINGULAR:
            wide.add(statement.args[SINGULAR[statement.op]])
    names = {defined_name(statement) for statement in body}
    return {name for name in names if name is not None and name not in wide}


def _narrows(statement: Statement, wide: set[str], exact: set[str]) -> bool:
    """Whether rounding hides small differences of what a statement reads."""
    if not isinstance(statement, Compute) or statement.op in DISCONTINUOUS:
        return False
    if statement.op == "cast" and statement.dtype in HALF:
        return statement.name not in exact
    return statement.dtype is torch.float32 and statement.name not in wide


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
