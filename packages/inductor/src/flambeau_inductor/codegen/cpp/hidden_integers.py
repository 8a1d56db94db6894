"""Integers that conditions choose and indices are computed from, hidden from the compiler.

    v2 = cast v1 (bool) :i64; v3 = load b0[v2]     ->  {}: `v1 ? hidden_1 : hidden_0`
    v4 = where v1 v8 v9; v3 = load b0[v4]          ->  {v8, v9}, where these are constants

GCC (12 does) takes the condition itself for an index that is chosen between 0 and 1. Vectorised,
that is 0 or -1: the load reads another element, or memory in front of the buffer. It cannot do so
with variables that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, Constant, defined_name, index_of, operands

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, Statement


def chosen_integers(body: Body) -> set[str] | None:
    """The constants that conditions choose for an index; None if no index depends on a choice."""
    defined = {name: s for s in body if (name := defined_name(s)) is not None}
    pending = {
        name for s in body if (index := index_of(s)) is not None for name in free_names(index)
    }
    seen: set[str] = set()
    chosen: set[str] = set()
    chooses = False
    while pending:
        name = pending.pop()
        statement = defined.get(name)
        if name in seen or not isinstance(statement, Compute) or not _is_integer(statement):
            continue
        seen.add(name)
        pending.update(operands(statement))
        if statement.op == "where":
            chooses = True
            chosen.update(_constants(statement.args[1:], defined))
        chooses |= statement.op == "cast" and defined[statement.args[0]].dtype is torch.bool  # type: ignore[union-attr]
    return chosen if chooses else None


def hidden_values(body: Body, chosen: set[str]) -> dict[int, str]:
    """A variable for each number to hide."""
    numbers = {int(s.value) for s in body if isinstance(s, Constant) and s.name in chosen}
    return {n: f"hidden_{n}".replace("-", "m") for n in sorted({0, 1, *numbers})}


def _is_integer(statement: Compute) -> bool:
    return not statement.dtype.is_floating_point and statement.dtype is not torch.bool


def _constants(names: tuple[str, ...], defined: dict[str, Statement]) -> set[str]:
    """The constants that some values are computed from, where they are computed from no others."""
    result: set[str] = set()
    for name in names:
        statement = defined[name]
        if isinstance(statement, Constant):
            result.add(name)
        elif isinstance(statement, Compute) and statement.op != "where":
            result |= _constants(statement.args, defined)
    return result
