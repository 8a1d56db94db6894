"""The loops over several inner axes, in each phase of a row as it reads and writes memory.

    inner r0 < 3136, r1 < 64        v0 = load b0[64*r0 + r1];  v2 = reduce sum v0
    ->  r0 = 0;  for (r1 = 0; r1 < 200704; ++r1) ...                one long row

    inner r0 < 64, r1 < 3136        v0 = load b0[r0 + 64*r1];  v2 = reduce sum v0
    ->  for (r1 ...) for (r0 ...) ...                               contiguous along the last loop

    inner r0 < 3136, r1 < 64        store b1[r0 + 3136*r1] (load b0[64*r0 + r1])
    ->  tiles, as in a transposing kernel

Values kept between phases stand where the axes' own order puts them, whatever the loops' order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.cpp.plan import (
    Plan,
    choose_plan,
    static_product,
    stride_along,
    vector_axis,
)
from flambeau_inductor.indexing.expressions import sympify
from flambeau_inductor.ir import Axis, CheckIndex, Scan, Store, index_of, scatters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import LoopKernel
    from flambeau_inductor.scheduler.phases import Phase


@dataclass(frozen=True)
class Nest:
    """Loops over `outer`, within which `row` is the innermost loop, over all points of the axes
    `merged` as well, outermost first, whose own variables are 0.
    """

    outer: tuple[Axis, ...]
    merged: tuple[Axis, ...]
    row: Axis


def nest_of(kernel: LoopKernel, phase: Phase) -> Nest:
    """The loops of a phase."""
    *outer, row = _ordered(kernel, phase)
    merged: list[Axis] = []
    if row is not kernel.inner[-1] and (phase.keeps or phase.fetches):
        return Nest(tuple(outer), (), row)  # rows of kept values have the axes' own order
    # The first axis is what threads share out: what is merged with it goes on inside of a share.
    while outer and not (merged and merged[0] is kernel.inner[0]) and row is not kernel.inner[0]:
        if not _follow(phase, outer[-1], [*merged, row]):
            break
        merged.insert(0, outer.pop())
    return Nest(tuple(outer), tuple(merged), row)


def _ordered(kernel: LoopKernel, phase: Phase) -> Sequence[Axis]:
    """The inner axes, the one with the best accesses last, if the order does not matter."""
    inner = kernel.inner
    if (
        len(inner) < 2
        or scatters(phase.inner)
        or phase.sorts
        or phase.sorted
        or any(reduce.kind in ("argmax", "argmin") for reduce in phase.reduces)
        or any(isinstance(s, (Scan, CheckIndex)) for s in phase.inner)
    ):
        return inner
    best = vector_axis(_pointwise(kernel, phase), inner)
    if best is None or best is inner[-1]:
        return inner
    return [*(axis for axis in inner if axis is not best), best]


def _follow(phase: Phase, axis: Axis, rows: Sequence[Axis]) -> bool:
    """Whether each step along an axis goes as far as the rows inside of it do, for all accesses."""
    if phase.sorts or phase.sorted:
        return False
    length = sympy.prod([sympify(each.size) for each in rows])
    for statement in phase.inner:
        index = index_of(statement)
        if index is None:
            continue
        step, far = stride_along(index, rows[-1]), stride_along(index, axis)
        if step is None or far is None or sympy.expand(far - length * step) != 0:
            return False
    return True


def _pointwise(kernel: LoopKernel, phase: Phase) -> LoopKernel:
    """The body of a phase as a kernel over the inner axes."""
    return replace(kernel, outer=kernel.inner, inner=(), body=phase.inner)


def transposed(kernel: LoopKernel, phase: Phase) -> tuple[LoopKernel, Plan] | None:
    """A phase that only stores, and whose reads and writes go along different axes: as a kernel
    over the inner axes, with its plan; None for any other.
    """
    if len(kernel.inner) < 2 or phase.reduces or phase.keeps or phase.fetches:
        return None
    if phase.sorts or phase.sorted or scatters(phase.inner):
        return None
    if not any(isinstance(s, Store) for s in phase.inner) or any(
        isinstance(s, (Scan, CheckIndex)) for s in phase.inner
    ):
        return None
    if static_product(kernel.inner) is None:
        return None
    pointwise = _pointwise(kernel, phase)
    plan = choose_plan(pointwise)
    return None if plan.tile is None else (pointwise, plan)
