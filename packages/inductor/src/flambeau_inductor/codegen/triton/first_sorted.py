"""Sorts of which only the first few elements are stored (`topk`): the least key of a row is taken
again and again.

    v1 = sort values v0 descending            v1_order = first_lanes(v1_order_keys, 8, 8)
    v4 = lt (index r0) 8                  ->  rindex = tl.arange(0, 8)[None, :]
    store b1[8*i0 + r0] v1 if v4              v4 = rindex < 8
                                              tl.store(b1 + ..., [XBLOCK, 8])

A warp finds the least of its 32-bit integers in one instruction, where a sorting network exchanges
64 bits of each element many times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.codegen.triton.ops import TritonOps
from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import (
    Compute,
    Constant,
    IndexValue,
    Sort,
    Store,
    defined_name,
    index_of,
    operands,
)
from flambeau_inductor.scalar_ops import Replay

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, LoopKernel, Statement


def first_count(kernel: LoopKernel) -> int:
    """How many elements are stored of sorted rows; 0 if a kernel sorts none, uses what it sorts in
    another way, or stores so many that a sorting network is faster.
    """
    statements = {defined_name(s): s for s in kernel.body}
    late = {s.name for s in kernel.body if isinstance(s, Sort)}
    if not late or len(kernel.inner) != 1 or not isinstance(kernel.inner[0].size, int):
        return 0
    most = 1
    for statement in kernel.body:
        index = index_of(statement)
        names = {*operands(statement), *(free_names(index) if index is not None else ())}
        if not names & late:
            continue
        if not isinstance(statement, Store) or statement.mode or statement.mask is None:
            return 0
        count = _count(statements, statement.mask, kernel.inner[0].symbol)
        if count is None or free_names(statement.index) & late:
            return 0
        most = max(most, count)
    steps = (kernel.inner[0].size - 1).bit_length()
    return most if 5 * most <= steps * (steps + 1) else 0


def _count(statements: dict[str | None, Statement], mask: str, lane: object) -> int | None:
    """The number of lanes, from the first on, where a mask holds."""
    condition = statements[mask]
    if not isinstance(condition, Compute) or condition.op != "lt":
        return None
    place, end = (statements[name] for name in condition.args)
    if not isinstance(place, IndexValue) or place.expr != lane or not isinstance(end, Constant):
        return None
    return int(end.value)


def write_first_sorted(writer: Any, count: int) -> None:
    """The body of the function behind its lanes."""
    lanes = 1 << (count - 1).bit_length()
    body: Body = writer.kernel.body
    sorts = {s.name for s in body if isinstance(s, Sort)}
    late = [s for s in body if isinstance(s, Store) and s.value in sorts]
    replay = Replay(TritonOps(writer))
    writer.sorted_lanes = (count, lanes)
    replay.run(writer.loads_first(tuple(s for s in body if s not in late)))
    writer.lane_block = str(lanes)
    writer.lanes(f"tl.arange(0, {lanes})[None, :]")
    masks = {store.mask for store in late}
    needed = {name for s in body if defined_name(s) in masks for name in operands(s)} | masks
    replay.run(s for s in body if defined_name(s) in needed)
    replay.run(late)
