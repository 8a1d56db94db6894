"""Loads that a condition along the lanes ends within a vector: whole vectors are read, and 0
replaces the elements behind the bound.

    v2 = i1 < 50257                            v2_touched_8 = v2
    v3 = tl.load(b0 + i1, v2, other=0)   ->    if VECTORS:
                                                   v2_touched_8 = i1 // 8 * 8 < 50257
                                               v3 = tl.where(v2, tl.load(b0 + i1, v2_touched_8), 0)

A condition that changes between the elements of a vector has each element read by itself. Relies on
rows that begin where vectors do; pointers must be multiples of 16 bytes, as for `vector_rows`: a
vector lies in one page with the element of it that is read. Where one is not, VECTORS is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.triton.vector_rows import VECTOR_BYTES
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, defined_name

if TYPE_CHECKING:
    from flambeau_inductor.ir import LoopKernel


@dataclass(frozen=True)
class VectorBound:
    """The elements before `bound` along an axis exist; they are read `vector` at a time."""

    axis: str
    bound: int
    vector: int

    def lines(self, mask: str) -> tuple[str, list[str]]:
        """The mask of whole vectors for the mask of elements, and what computes it."""
        name = f"{mask}_touched_{self.vector}"
        first = f"{self.axis} // {self.vector} * {self.vector}"
        return name, [f"{name} = {mask}", "if VECTORS:", f"    {name} = {first} < {self.bound}"]


def vector_bounds(kernel: LoopKernel, lane: str) -> dict[tuple[str, sympy.Expr], VectorBound]:
    """The bounds within a vector along the axis `lane`, by mask and index of loads."""
    statements = {defined_name(statement): statement for statement in kernel.body}
    result: dict[tuple[str, sympy.Expr], VectorBound] = {}
    for load in kernel.body:
        if not isinstance(load, Load) or load.mask is None or not load.dtype.is_floating_point:
            continue
        condition, vector = statements[load.mask], VECTOR_BYTES // load.dtype.itemsize
        if vector < 2 or not isinstance(condition, Compute) or condition.op != "lt":
            continue
        place, end = (statements[name] for name in condition.args)
        bound = _number(end)
        if not isinstance(place, IndexValue) or str(place.expr) != lane or bound is None:
            continue
        if bound % vector and _begins_with_a_vector(load.index, place.expr, vector):
            result[load.mask, load.index] = VectorBound(lane, bound, vector)
    return result


def _number(statement: object) -> int | None:
    """The integer that a statement always gives."""
    if isinstance(statement, Constant):
        return int(statement.value)
    if isinstance(statement, IndexValue) and statement.expr.is_Integer:
        return int(statement.expr)
    return None


def _begins_with_a_vector(index: sympy.Expr, lane: sympy.Symbol, vector: int) -> bool:
    """Whether lanes are neighbours in memory, and vectors of lanes are vectors there."""
    rest = sympy.expand(index - lane)
    if lane in rest.free_symbols:
        return False
    return all(term.as_coeff_Mul()[0] % vector == 0 for term in sympy.Add.make_args(rest))
