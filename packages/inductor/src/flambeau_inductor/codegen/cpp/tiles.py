"""Tiles of a transposing kernel: blocks that are read along lines of memory in one direction, and
written along lines in the other.

    b1[i0, i1] = b0[i1, i0]

    for (i1_tile ...) for (i0_tile ...) {
      stage_tile(b0 + ..., v0_tile)                reads 64 lines of b0, asks for those behind them
      for (i0 ...) {
        prefetch(b1 + ...)                         the row of the next tile
        for (i1 ...) b1[i0, i1] = v0_tile[i0 - first][i1 - part]
      }
    }

Tiles follow one another along what is read. Large results are written around the caches, a row of a
tile at a time (`streaming_stores`); of others, the next tile's lines are asked for. The machine
foresees neither 64 lines of reading nor rows that are far apart, as where their lengths are powers
of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.cpp.plan import (
    TILE_LEAST,
    hinted_size,
    is_transposed,
    stride_along,
)
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import Load, Store, defined_name

if TYPE_CHECKING:
    from flambeau_inductor.codegen.cpp.plan import Plan
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, LoopKernel

LINE = 64
"""The bytes of a line of memory."""

TILE_COLUMNS = 64
"""The columns of a tile, as measured: whole lines of what is written."""


def tile_shape(kernel: LoopKernel, plan: Plan) -> tuple[int, int]:
    """The rows and columns of a transposing kernel's tiles: its rows lie along what is read, a line
    of memory, its columns along what is written.
    """
    tile, vector = plan.tile, plan.vector
    assert tile is not None and vector is not None
    least = min(s.dtype.itemsize for s in kernel.body if is_transposed(s, vector, tile))
    size, columns = hinted_size(vector, kernel), TILE_COLUMNS
    while columns > TILE_LEAST and size < 4 * TILE_COLUMNS and size % columns:
        columns //= 2
    return max(TILE_LEAST, LINE // least), columns


def fetch_rows(writer: LoopWriter, vector: Axis, tile: Axis, rows: int, end: str) -> None:
    """Ask for what the next tile accesses along this row of a tile."""
    values = {name for s in writer.kernel.body if (name := defined_name(s)) is not None}
    dtypes = {param.name: param.dtype for param in writer.kernel.params}
    fetched: dict[tuple[str, sympy.Expr], Load | Store] = {}
    for s in writer.kernel.body:
        if not isinstance(s, Load | Store) or s.mask is not None:
            continue
        names = free_names(s.index)
        is_row = stride_along(s.index, vector) is sympy.S.One and names.isdisjoint(values)
        if is_row and tile.symbol.name in names:
            fetched[s.buffer, s.index] = s
    for (buffer, index), s in fetched.items():
        step = LINE // dtypes[buffer].itemsize
        place = index.xreplace({tile.symbol: tile.symbol + rows, vector.symbol: symbol("line")})
        head = f"for (int64_t line = part; line < {end}; line += {step})"
        if buffer in writer.streamed:
            head = f"if (!{buffer}_streams) {head}"
        text = f"{buffer} + {writer.printer.index_text(sympy.expand(place))}"
        writer.line(f"{head} __builtin_prefetch({text}, {int(isinstance(s, Store))}, 2);")
