"""How a kernel becomes loops: which axis is vectorised, and what the threads share out.

pointwise   no inner axes; one outer axis is the vector axis, the others are rows shared out to
            threads
rows        each outer point reduces its inner axes, vectorised along the innermost of them
columns     the inner axes are walked one by one while a block of an outer axis is reduced side by
            side (column sums)
shares      rows whose columns are reduced, too: shares of the rows (`row_shares`)
whole       a reduction to one outer point: threads share the inner axes and combine their parts
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import sympy

from flambeau_inductor.indexing.expressions import evaluate_expr, free_names, linear_parts
from flambeau_inductor.ir import (
    Compute,
    IndexValue,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    index_of,
    inner_names,
    operands,
    scatters,
)
from flambeau_inductor.scalar_ops import SCALAR_OPS

if TYPE_CHECKING:
    from flambeau_inductor.ir import Axis, Body, LoopKernel

PARALLEL_WORK = 131072
"""Threads share a kernel from this much work (float adds); waking them takes microseconds."""

COLUMN_UNIT = 16
"""Columns are shared out to threads by so many: a cache line of floats."""

COLUMN_BLOCK = 128
"""So many columns are reduced side by side: their accumulators stay in the first-level cache."""

WHOLE_ROWS = 1024
"""Up to so many columns are reduced side by side if there are few accumulators: rows are then read
from end to end.
"""

EXTREMES = ("max", "min", "argmax", "argmin")
"""Reductions whose columns have one accumulator of the size of an element, or two."""

TILE_LEAST = 16
"""Shorter axes are not walked in tiles, and no tile is smaller."""

SORT_COST = 32
"""An element's share of sorting a short row."""

SHORT_ROW = 8
"""Rows this short are reduced side by side too, where the outer axis is longer."""


@dataclass(frozen=True)
class Plan:
    """`vector` is the axis vectorised (None: a single point); `lead` the outer axes that loops walk
    outside it, outermost first.

    `tile` is the lead axis along which some load is contiguous that is not so along the vector
    axis: both are walked in tiles.
    """

    kind: str
    lead: tuple[Axis, ...]
    vector: Axis | None
    point_cost: int
    static_work: int | None
    tile: Axis | None = None
    serial: bool = False
    """A scatter: one thread takes the points in their order."""

    @property
    def may_be_parallel(self) -> bool:
        """Whether any call of the kernel can have enough work for threads."""
        if self.serial or (self.kind == "rows" and not self.lead):
            return False
        return self.static_work is None or self.static_work >= PARALLEL_WORK


def choose_plan(kernel: LoopKernel) -> Plan:
    """The plan of a kernel."""
    cost = max(1, sum(statement_cost(statement) for statement in kernel.body))
    total = static_product((*kernel.outer, *kernel.inner))
    work = None if total is None else total * cost
    if kernel.shares != 0:
        return Plan("shares", kernel.outer, kernel.inner[-1], cost, work)
    if scatters(kernel.body):
        vector = vector_axis(kernel, kernel.outer)
        if vector is not None and is_ordered(kernel.body, vector):
            vector = kernel.outer[-1]
        lead = _without(kernel.outer, vector)
        return Plan("pointwise", lead, vector, cost, work, serial=True)
    if not kernel.inner:
        vector = vector_axis(kernel, kernel.outer)
        lead = _without(kernel.outer, vector)
        return Plan("pointwise", lead, vector, cost, work, _tile_axis(kernel, vector, lead))
    follows = any(isinstance(s, (Scan, Sort)) for s in kernel.body)
    if not kernel.outer and not follows and (work is None or work >= PARALLEL_WORK):
        return Plan("whole", (), kernel.inner[-1], cost, work)
    column = None if any(isinstance(s, Sort) for s in kernel.body) else _column_axis(kernel)
    if column is not None:
        return Plan("columns", _without(kernel.outer, column), column, cost, work)
    return Plan("rows", kernel.outer, kernel.inner[-1], cost, work)


def is_scatter(statement: object) -> bool:
    """Whether each point stores, even if all store to one place."""
    return isinstance(statement, Store) and statement.mode != ""


def is_ordered(body: Body, vector: Axis) -> bool:
    """Whether points along an axis may scatter to one place."""
    moving = dependents(body, {vector.symbol.name}) - {vector.symbol.name}
    return any(
        not moving.isdisjoint(free_names(s.index))
        or stride_along(s.index, vector) in (None, sympy.S.Zero)
        for s in body
        if isinstance(s, Store) and s.mode != ""
    )


COSTLY = 4
"""What costs as much is worth a vector loop with arrays around it, or sums of vectors' lanes."""


def statement_cost(statement: object) -> int:
    """The cost of a statement at one point, in float adds."""
    if isinstance(statement, Compute):
        return SCALAR_OPS[statement.op].cost
    if isinstance(statement, Sort):
        return SORT_COST
    return 1 if isinstance(statement, (Load, Store, Reduce, Scan, IndexValue)) else 0


def static_product(axes: tuple[Axis, ...]) -> int | None:
    """The number of points of some axes, None if it is known only at run time."""
    sizes = [_static(axis) for axis in axes]
    return None if None in sizes else math.prod(sizes)  # type: ignore[arg-type]


def hinted_size(axis: Axis, kernel: LoopKernel) -> int:
    """The size of an axis, or what it likely is."""
    static = _static(axis)
    if static is not None:
        return static
    names = {symbol.name: hint for symbol, hint in zip(kernel.sizes, kernel.hints, strict=False)}
    if len(names) < len(kernel.sizes):
        return 1024
    return int(evaluate_expr(axis.size, names))  # type: ignore[arg-type]


def dependents(body: Body, axes: set[str]) -> set[str]:
    """The names of the axes and of all values that vary with them. A Reduce is taken to vary with
    what its operand varies with: right for outer axes; for inner ones callers give only the
    statements of one inner loop.
    """
    result = set(axes)
    for statement in body:
        name = getattr(statement, "name", None)
        if name is not None and varies(statement, result):
            result.add(name)
    return result


def varies(statement: object, names: set[str]) -> bool:
    """Whether a statement reads any of these names, in its operands or its index expression."""
    if any(name in names for name in operands(statement)):  # type: ignore[arg-type]
        return True
    index = index_of(statement)  # type: ignore[arg-type]
    return index is not None and not names.isdisjoint(free_names(index))


def _static(axis: Axis) -> int | None:
    size = axis.size
    if isinstance(size, int):
        return size
    return int(size) if size.is_Integer else None


def _without(axes: tuple[Axis, ...], one: Axis | None) -> tuple[Axis, ...]:
    return tuple(axis for axis in axes if axis is not one)


def stride_along(expr: sympy.Expr, axis: Axis) -> sympy.Expr | None:
    """By how much an index moves with an axis; None where that is not constant."""
    name = axis.symbol.name
    if name not in free_names(expr):
        return sympy.S.Zero
    parts = linear_parts(expr, frozenset((name,)))
    return None if parts is None else parts[0].get(name, sympy.S.Zero)


def _contiguity(axis: Axis, weights: dict[Load | Store, float]) -> float:
    """The score of accesses along an axis: their weights at unit stride, less if invariant."""
    score = 0.0
    for statement, weight in weights.items():
        stride = stride_along(statement.index, axis)
        if stride is sympy.S.One:
            score += weight
        elif stride is sympy.S.Zero:
            score += 0.25 * weight
    return score


def _weights(kernel: LoopKernel) -> dict[Load | Store, float]:
    """2 a store, 1 a load, times the share of the points that have an element of their own: what is
    read of a row at all points of it stays in the cache.
    """
    accesses = [s for s in kernel.body if isinstance(s, (Load, Store))]
    moving = _moving(kernel)
    points = max(1, math.prod(hinted_size(axis, kernel) for axis in moving))
    return {
        s: (2 if isinstance(s, Store) else 1) * _accessed(s.index, moving, kernel) / points
        for s in accesses
    }


def _moving(kernel: LoopKernel) -> dict[Axis, set[str]]:
    """The names that vary with each axis."""
    axes = (*kernel.outer, *kernel.inner)
    return {axis: dependents(kernel.body, {axis.symbol.name}) for axis in axes}


def vector_axis(kernel: LoopKernel, axes: tuple[Axis, ...]) -> Axis | None:
    """The axis with the best accesses; the last one if none is better."""
    best, best_score = None, -1.0
    weights = _weights(kernel)
    for axis in reversed(axes):
        score = _contiguity(axis, weights)
        if hinted_size(axis, kernel) < 2 * SHORT_ROW:
            score *= 0.25
        if score > best_score:
            best, best_score = axis, score
    return best


def _column_axis(kernel: LoopKernel) -> Axis | None:
    """The outer axis to reduce side by side, if that reads memory better than the innermost one."""
    if not kernel.outer:
        return None
    inner = inner_names(kernel.body, kernel.inner)
    reads = tuple(s for s in kernel.body if isinstance(s, (Load, Store)) and varies(s, inner))
    # By elements: a vector that is read along all columns stays in the cache.
    moving = _moving(kernel)
    sizes = {s: _accessed(s.index, moving, kernel) for s in reads}

    def contiguous(axis: Axis) -> int:
        return sum(sizes[s] for s in reads if stride_along(s.index, axis) is sympy.S.One)

    best: Axis | None = None
    best_score = contiguous(kernel.inner[-1])
    for axis in reversed(kernel.outer):
        score = contiguous(axis)
        if score > best_score:
            best, best_score = axis, score
    if best is not None and hinted_size(best, kernel) < SHORT_ROW:
        return None
    static_row = static_product(kernel.inner)
    if best is None and static_row is not None and static_row <= SHORT_ROW:
        weights = _weights(kernel)
        long = [a for a in kernel.outer if hinted_size(a, kernel) >= 2 * SHORT_ROW]
        return max(
            long,
            key=lambda a: (_contiguity(a, weights), hinted_size(a, kernel)),
            default=None,
        )
    return best


def _accessed(index: sympy.Expr, moving: dict[Axis, set[str]], kernel: LoopKernel) -> int:
    """How many elements an access goes to, at most; `moving`: the names that vary with an axis, of
    which an index has the axis or values that choose a row.
    """
    names = free_names(index)
    axes = [axis for axis, varying in moving.items() if not varying.isdisjoint(names)]
    return math.prod(hinted_size(axis, kernel) for axis in axes)


def _tile_axis(kernel: LoopKernel, vector: Axis | None, lead: tuple[Axis, ...]) -> Axis | None:
    """The lead axis: stride 1 for a load that strides along the vector axis, both long enough."""
    if vector is None or hinted_size(vector, kernel) < TILE_LEAST:
        return None
    for statement in kernel.body:
        for axis in lead:
            if is_transposed(statement, vector, axis) and hinted_size(axis, kernel) >= TILE_LEAST:
                return axis
    return None


def column_block(kernel: LoopKernel, vector: Axis) -> int:
    """How many columns are reduced side by side."""
    size = _static(vector)
    if size is not None and size > WHOLE_ROWS and _reads_once(kernel):
        return WHOLE_ROWS
    if size is None or size > WHOLE_ROWS:
        return COLUMN_BLOCK
    accumulated = size * sum(isinstance(s, Reduce) for s in kernel.body)
    if any(isinstance(s, Scan) for s in kernel.body):
        return COLUMN_BLOCK
    if size > COLUMN_BLOCK and accumulated > 2 * WHOLE_ROWS:
        return COLUMN_BLOCK
    return max(1, -(-size // COLUMN_UNIT)) * COLUMN_UNIT


def _reads_once(kernel: LoopKernel) -> bool:
    """Whether a kernel only looks for an extreme: what is read is not read again, and one array of
    accumulators is updated. Long pieces of rows are then faster, as measured.
    """
    kinds = [s.kind for s in kernel.body if isinstance(s, Reduce)]
    if len(kinds) != 1 or kinds[0] not in EXTREMES:
        return False
    inner = inner_names(kernel.body, kernel.inner)
    return not any(
        isinstance(s, Scan) or (isinstance(s, Store) and varies(s, inner)) for s in kernel.body
    )


def is_transposed(statement: object, vector: Axis, lead: Axis) -> TypeGuard[Load]:
    """Whether a load is contiguous along the lead axis and strides along the vector axis."""
    if not isinstance(statement, Load) or stride_along(statement.index, lead) is not sympy.S.One:
        return False
    return stride_along(statement.index, vector) not in (None, sympy.S.Zero, sympy.S.One)
