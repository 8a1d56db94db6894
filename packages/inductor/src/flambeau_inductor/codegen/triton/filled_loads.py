"""Masked loads of which nothing else is used than a choice between the element and a number, under
the same mask: the load itself gives the number.

    v8 = load b0[i1 - 1] if v5              v8 = tl.load(b0 + (i1 - 1), v5, other=-1.0)
    v9 = -1.0                          ->
    v10 = where v5 v8 v9                    v10 = v8
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.float8 import FLOAT8
from flambeau_inductor.codegen.triton.ops import number
from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Compute, Constant, Load, defined_name, index_of, operands

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.ir import LoopKernel, Statement


def filled_loads(kernel: LoopKernel) -> dict[tuple[str, sympy.Expr, str], str]:
    """The number that each such load gives, as text, by buffer, index and mask."""
    statements = {defined_name(s): s for s in kernel.body}
    uses: dict[str, list[Statement]] = {}
    for statement in kernel.body:
        index = index_of(statement)
        names = {*operands(statement), *(free_names(index) if index is not None else ())}
        for name in names:
            uses.setdefault(name, []).append(statement)
    result: dict[tuple[str, sympy.Expr, str], str] = {}
    for load in kernel.body:
        if not isinstance(load, Load) or load.mask is None:
            continue
        if load.dtype is torch.bool or load.dtype in FLOAT8:
            continue
        use, *others = uses.get(load.name, [None])
        if others or not isinstance(use, Compute) or use.op != "where":
            continue
        condition, chosen, other = use.args
        outside = statements[other]
        if (condition, chosen) == (load.mask, load.name) and isinstance(outside, Constant):
            result[load.buffer, load.index, load.mask] = number(outside.value, load.dtype)
    return result
