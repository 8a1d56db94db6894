"""Persistent reductions of rows that are longer than one tile: a program keeps a row in registers
as several tiles, whose statements are written one behind the other.

    v0_part0 = tl.load(b0 + 40960 * i0 + 0 + lanes)
    ...
    v0_part9 = tl.load(b0 + 40960 * i0 + 36864 + lanes)
    v1_joined = v0_part0 + v0_part1
    ...
    v1 = tl.sum(v1_joined, 1)[:, None]

The row is read once, and tiles need not make up a power of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.codegen.triton import reductions
from flambeau_inductor.codegen.triton.ops import TritonOps
from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import (
    CheckIndex,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    index_of,
    inner_names,
)
from flambeau_inductor.scalar_ops import Replay
from flambeau_inductor.scheduler.phases import split_phases

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flambeau_inductor.ir import LoopKernel, Statement


def can_tile(kernel: LoopKernel) -> bool:
    """Whether the statements of a kernel can be written tile by tile: no element depends on its
    place in the row, and no place on an element.
    """
    inner = inner_names(kernel.body, kernel.inner) - {a.symbol.name for a in kernel.inner}
    for statement in kernel.body:
        index = index_of(statement)
        if isinstance(statement, (Scan, Sort, CheckIndex)):
            return False
        if isinstance(statement, Reduce) and statement.kind in reductions.POSITIONS:
            return False
        if isinstance(statement, Store) and statement.mode:
            return False
        if isinstance(statement, Load) and statement.mask:
            return False
        if index is not None and not inner.isdisjoint(free_names(index)):
            return False
    return True


def write_row_tiles(writer: Any) -> None:
    """The body of the function. ValueError for a tile without an element: masks of reductions are
    those of the last tile.
    """
    if (writer.tiling.tiles - 1) * writer.tiling.rblock >= writer.inner_points:
        raise ValueError(f"no element in the last of {writer.tiling.tiles} tiles")
    rows = Replay(TritonOps(writer))
    tiles = [Replay(TritonOps(writer)) for _ in range(writer.tiling.tiles)]
    for number, phase in enumerate(split_phases(writer.kernel)):
        rows.run(phase.row)
        if number == 0:
            # Before anything waits for one of them.
            _run(writer, rows, tiles, [s for s in phase.inner if isinstance(s, Load)])
        _run(writer, rows, tiles, phase.inner)
        for reduce in phase.reduces:
            dtype = writer.dtype_of_value(reduce.value)
            values = [tile.values[reduce.value] for tile in tiles]
            writer.line(f"{reduce.name} = {_reduced(writer, reduce, values, dtype)}")
            rows.values[reduce.name] = reduce.name
            rows.dtypes[reduce.name] = reduce.dtype


def _run(
    writer: Any, rows: Replay, tiles: Sequence[Replay], statements: Sequence[Statement]
) -> None:
    """Write what the tiles do not have yet, tile after tile."""
    for number, tile in enumerate(tiles):
        tile.values |= rows.values
        tile.dtypes |= rows.dtypes
        missing = [s for s in statements if getattr(s, "name", None) not in tile.values]
        if missing:
            writer.begin_tile(number)
            tile.run(missing)
    writer.end_tiles()


def _reduced(writer: Any, reduce: Reduce, values: list[str], dtype: torch.dtype) -> str:
    """A Reduce of the tiles `values`, as an expression."""
    name, kind, row = reduce.name, reduce.kind, writer.row()
    if kind == "mean":
        return _mean(writer, reduce.value, values, dtype, name)
    if kind == "squared_deviations":
        mean = _mean(writer, reduce.value, values, dtype, f"{name}_mean")
        far = _each(writer, f"{name}_far", [f"{value} - {mean}" for value in values])
        squares = _each(writer, f"{name}_square", [f"{each} * {each}" for each in far])
        return _joined(writer, name, "sum", squares, dtype)
    if kind == "sum_exp":
        top = _once(writer, "max", reduce.value, values, dtype, f"{name}_max")
        weights = _each(writer, f"{name}_far", [f"tl.exp({value} - {top})" for value in values])
        return _joined(writer, name, "sum", weights, dtype)
    row.known[kind, reduce.value] = name
    return _joined(writer, name, kind, values, dtype)


def _once(
    writer: Any, kind: str, value: str, values: list[str], dtype: torch.dtype, name: str
) -> str:
    """A reduction of the tiles `values` that other reductions need too, by the name it has."""
    known = writer.row().known
    if (kind, value) not in known:
        writer.line(f"{name} = {_joined(writer, name, kind, values, dtype)}")
        known[kind, value] = name
    return known[kind, value]


def _each(writer: Any, name: str, texts: list[str]) -> list[str]:
    """Names for an expression of each tile."""
    names = [f"{name}_{number}" for number in range(len(texts))]
    for each, text in zip(names, texts, strict=True):
        writer.line(f"{each} = {text}")
    return names


def _mean(writer: Any, value: str, values: list[str], dtype: torch.dtype, name: str) -> str:
    """The mean of the tiles `values`, with the mean of the distances to it added."""
    row = writer.row()
    if ("mean", value) not in row.known:
        total = _once(writer, "sum", value, values, dtype, f"{name}_total")
        writer.line(f"{name}_near = {total} / {row.length}")
        rests = _each(writer, f"{name}_rest", [f"{each} - {name}_near" for each in values])
        rest = _joined(writer, f"{name}_rest", "sum", rests, dtype)
        writer.line(f"{name} = {name}_near + {rest} / {row.length}")
        row.known["mean", value] = name
    return row.known["mean", value]


def _joined(writer: Any, name: str, kind: str, values: list[str], dtype: torch.dtype) -> str:
    """All tiles reduced to one value, as an expression."""
    joined = f"{name}_joined"
    for number, value in enumerate(values):
        full = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
        if not writer.tile_fits(number):
            full = f"tl.where(rmask, {full}, {reductions.identity(kind, dtype)})"
        text = full if number == 0 else reductions.combine(kind, joined, full, dtype)
        writer.line(f"{joined} = {text}")
    return reductions.reduce_tile(writer.row(), kind, joined, dtype)
