"""Kernels that reduce rows and columns at once: a program takes the tiles of a share of the rows,
and keeps a running tile for each ColumnReduce.

    share0 = tl.program_id(0)
    v3 = tl.load(b1 + r0, ...)                       what depends on columns alone
    v9_tile = tl.full([XBLOCK, RBLOCK], 0, tl.float32)
    for step in tl.range(0, 32):
        xindex = (share0 + step * 256) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        ...
        v9_tile = v9_tile + v8
    v9 = tl.sum(v9_tile, 0)[None, :]
    tl.store(b3 + 1024 * share0 + r0, v9, ...)

Neighbouring programs take neighbouring tiles: together they walk through memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.codegen.triton import reductions
from flambeau_inductor.codegen.triton.ops import TRITON_TYPES, TritonOps, extremum
from flambeau_inductor.indexing.expressions import free_names, integer_text
from flambeau_inductor.ir import SHARE, ColumnReduce, Reduce, Store, index_of, operands
from flambeau_inductor.scalar_ops import Replay

if TYPE_CHECKING:
    import torch

    from flambeau_inductor.ir import Body, LoopKernel, Statement


def split_by_rows(kernel: LoopKernel) -> tuple[Body, Body, Body]:
    """The statements that depend on columns alone, those of each row, and the stores of a share's
    results. A reduction of what all rows share is done in each row.
    """
    moving = {axis.symbol.name for axis in kernel.outer}
    before: list[Statement] = []
    rows: list[Statement] = []
    after: list[Statement] = []
    for statement in kernel.body:
        index = index_of(statement)
        if index is not None and SHARE in index.free_symbols:
            after.append(statement)
            continue
        names = {*operands(statement), *(free_names(index) if index is not None else ())}
        inside = isinstance(statement, (Reduce, ColumnReduce, Store)) or names & moving
        (rows if inside else before).append(statement)
        if inside and not isinstance(statement, Store):
            moving.add(getattr(statement, "name", ""))
    return tuple(before), tuple(rows), tuple(after)


def write_shares(writer: Any) -> None:
    """The body of the function."""
    kernel = writer.kernel
    before, rows, after = split_by_rows(kernel)
    columns = [s for s in rows if isinstance(s, ColumnReduce)]
    replay = Replay(TritonOps(writer))
    program = writer.program(0) + (".to(tl.int64)" if writer.wide else "")
    writer.line(f"{SHARE.name} = {program}")
    writer.lanes("tl.arange(0, RBLOCK)[None, :]")
    replay.run(before)
    for column in columns:
        start = reductions.identity(column.kind, column.dtype)
        kind = TRITON_TYPES[column.dtype]
        writer.line(f"{column.name}_tile = tl.full([XBLOCK, RBLOCK], {start}, {kind})")
    points, shares = integer_text(writer.outer_points), integer_text(kernel.shares)
    stages = f", num_stages={writer.tiling.stages}" if writer.tiling.stages else ""
    round_of = f"({shares}) * XBLOCK"
    writer.line(f"for step in tl.range(0, ({points} + {round_of} - 1) // ({round_of}){stages}):")
    writer.depth += 1
    writer.row_prologue(f"({SHARE.name} + step * ({shares}))")
    replay.run(writer.loads_first(rows))
    writer.depth -= 1
    for column in columns:
        writer.line(f"{column.name} = {_joined(writer, column)}")
        replay.values[column.name] = column.name
        replay.dtypes[column.name] = column.dtype
    for store in after:
        assert isinstance(store, Store)
        writer.store_tile(
            store.buffer, store.index, store.value, "[1, RBLOCK]",
            [] if writer.lanes_fit else ["rmask"], "", None,
        )  # fmt: skip


def take(writer: Any, column: ColumnReduce, value: str, dtype: torch.dtype) -> None:
    """Take a tile of rows into a ColumnReduce's running tile."""
    running = f"{column.name}_tile"
    new = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
    if column.kind == "sum":
        text = f"{running} + {new}"
    else:
        text = extremum(f"{column.kind}imum", running, new, dtype)
    if not writer.rows_fit:
        text = f"tl.where(xmask, {text}, {running})"
    writer.line(f"{running} = {text}")


def _joined(writer: Any, column: ColumnReduce) -> str:
    """The rows of a running tile reduced to one."""
    running = f"{column.name}_tile"
    if writer.tiling.xblock == 1:
        return running
    if column.kind == "sum":
        return f"tl.sum({running}, 0)[None, :]"
    return f"tl.reduce({running}, 0, {writer.helper(f'{column.kind}imum_nan')})[None, :]"
