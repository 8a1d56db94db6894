"""Which products must be rounded before a sum reads them.

    v1 = mul v0 v0; v2 = reduce sum v1; v3 = div v2 n; v4 = sub v1 v3      ->  {(v0, v0)}
    v2 = mul v0 v1; v3 = add v2 bias                                       ->  {}

LLVM contracts a product and a sum that reads it: `v4` becomes fma(v0, v0, -v3). The product in it
is exact, the one that `v3` was computed from is rounded. Where the two cancel in eager, their
difference remains here. So a product is rounded where the other operand of the sum

- is computed from the same product: a mean, a greatest element, a running sum;
- is a product as well: `a * b - b * a`;

and where a Reduce or a Scan subtracts from the product what it finds by the way. Other products are
contracted, which is more exact. The former kind costs nothing: as something else reads the product,
it is computed anyway. Triton contracts nothing where numerics are strict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.triton.reductions import SUBTRACTING
from flambeau_inductor.ir import Compute, Reduce, Scan, TileReduce, defined_name, operands

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body

CONTRACTED = frozenset({torch.float32, torch.float64})
"""The dtypes of arithmetic in floating point (law 6 of `ir`)."""

SUMS = frozenset({"add", "sub", "floor_divide"})
"""Operators that add to an operand: floor_divide subtracts the remainder."""


def rounded_products(body: Body) -> set[tuple[str, ...]]:
    """The operands of each product that must be rounded."""
    factors: dict[str, tuple[str, ...]] = {}
    """Of each product, and of each negated one."""
    sources: dict[str, set[tuple[str, ...]]] = {}
    """The products that a value is computed from."""
    rounded: set[tuple[str, ...]] = set()
    for statement in body:
        read = operands(statement)
        if isinstance(statement, Compute) and statement.op in SUMS:
            first, second = read
            for term, rest in ((first, second), (second, first)):
                remainder = statement.op == "floor_divide" and term == first
                if term in factors and (
                    remainder or rest in factors or factors[term] in sources[rest]
                ):
                    rounded.add(factors[term])
        elif isinstance(statement, (Reduce, TileReduce, Scan)) and statement.kind in SUBTRACTING:
            rounded.update(factors[name] for name in read if name in factors)
        name = defined_name(statement)
        if name is None:
            continue
        sources[name] = set().union(*(sources[each] for each in read))
        if isinstance(statement, Compute) and statement.dtype in CONTRACTED:
            if statement.op == "mul":
                factors[name] = read
                sources[name].add(read)
            elif statement.op == "neg" and read[0] in factors:
                factors[name] = factors[read[0]]
    return rounded
