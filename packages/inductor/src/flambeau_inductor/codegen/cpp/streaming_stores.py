"""Stores of large results around the caches: a plain store reads the line of memory that it is
going to overwrite, a third of the traffic of an addition.

    v2 = add v0 v1;  store b2[i0] v2

    if (b2_streams)
      for (line = begin; line < end; line = line_end)
        for (i0 = line; i0 < line_end; ++i0) ..., b2_line[i0 - line] = v2
        stream_line(b2_line, b2 + line, line_end - line, b2_streams)
    else
      for (i0 = begin; i0 < end; ++i0) ..., b2[i0] = v2

A line is computed in the first-level cache, as GCC vectorises no such stores. In tiles of a
transposing kernel, it is a row of the tile, if that is whole lines of memory. Only what a cache
cannot keep for the next kernel is stored so: the build knows the size of the last-level cache
(`CACHE_BYTES`), the kernel that of the result.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.cpp.bfloat16_words import write_loop
from flambeau_inductor.codegen.cpp.cpp_types import storage_type
from flambeau_inductor.codegen.cpp.plan import (
    dependents,
    hinted_size,
    stride_along,
)
from flambeau_inductor.codegen.cpp.tiles import LINE, TILE_COLUMNS, tile_shape
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import CheckIndex, Load, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.cpp.plan import Plan
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, LoopKernel, Statement

STREAM_LEAST = 8 << 20
"""Results of fewer bytes fit a cache of any machine that is worth it."""

SHORTEST_ROW = 1024
"""Rows of fewer bytes are not streamed: they begin and end within lines of memory."""

LINE_BYTES = 256
"""So many bytes are computed before they are stored, as measured: of longer lines the stores come
too fast one after another.
"""

MOST_COST = 12
"""Dearer points (in float adds) take longer than the memory: then plain stores wait for nothing."""


def streamed_buffers(kernel: LoopKernel, plan: Plan) -> dict[str, tuple[Axis, ...]]:
    """The buffers that a pointwise kernel stores around the caches if they are large enough when it
    runs, each with the axes along which it stores there.
    """
    vector = plan.vector
    if plan.kind != "pointwise" or plan.serial or vector is None:
        return {}
    if plan.point_cost > MOST_COST or not _reads_streams(kernel, vector):
        return {}
    stores: dict[str, list[Store]] = {}
    for statement in kernel.body:
        if isinstance(statement, Store):
            stores.setdefault(statement.buffer, []).append(statement)
    read = {s.buffer for s in kernel.body if isinstance(s, Load)}
    result = {}
    for param in kernel.params:
        side_by_side = _side_by_side(stores.get(param.name, ()), vector)
        if param.access != "write" or param.name in read or not side_by_side:
            continue
        store, size = side_by_side[0], param.dtype.itemsize * len(side_by_side)
        axes = [a for a in kernel.outer if a.symbol.name in free_names(store.index)]
        likely = math.prod(hinted_size(axis, kernel) for axis in axes) * size
        if plan.tile is None:
            whole = hinted_size(vector, kernel) * size >= SHORTEST_ROW
        else:
            whole = _fills_lines(store, kernel, plan, param.dtype.itemsize)
        if whole and likely >= STREAM_LEAST:
            result[param.name] = tuple(axes)
    return result


def _side_by_side(stores: Sequence[Store], vector: Axis) -> list[Store]:
    """The stores in the order of their places, if the points along the vector axis leave none
    between these; else none.
    """
    if any(
        store.mode or store.mask is not None or stride_along(store.index, vector) != len(stores)
        for store in stores
    ):
        return []
    places = {sympy.expand(store.index - stores[0].index): store for store in stores}
    if len(places) < len(stores) or not all(place.is_Integer for place in places):
        return []
    first, last = min(places, default=0), max(places, default=0)
    return [places[at] for at in sorted(places)] if last - first < len(stores) else []


def _fills_lines(store: Store, kernel: LoopKernel, plan: Plan, itemsize: int) -> bool:
    """Whether each row of a tile is whole lines of memory, where the buffer begins with one: else
    two tiles share a line, and each would wait for it.
    """
    if tile_shape(kernel, plan)[1] * itemsize % LINE:
        return False
    strides = [stride_along(store.index, axis) for axis in plan.lead]
    return store.index.subs(dict.fromkeys(store.index.free_symbols, 0)) == 0 and all(
        stride is not None and stride.is_Integer and int(stride) * itemsize % LINE == 0
        for stride in strides
    )


def _reads_streams(kernel: LoopKernel, vector: Axis) -> bool:
    """Whether no place that is read depends on data, but for where a row begins."""
    known = {axis.symbol.name for axis in kernel.outer} | {size.name for size in kernel.sizes}
    moving = dependents(kernel.body, {vector.symbol.name}) - known
    return not any(
        s.value in moving
        if isinstance(s, CheckIndex)
        else not free_names(s.index).isdisjoint(moving)
        for s in kernel.body
        if isinstance(s, Load | CheckIndex)
    )


def declare_streams(writer: LoopWriter) -> None:
    """Whether each buffer is streamed in this call."""
    sizes = {param.name: param.dtype.itemsize for param in writer.kernel.params}
    buffers = [s.buffer for s in writer.kernel.body if isinstance(s, Store)]
    for buffer, axes in writer.streamed.items():
        count, size = writer.product(axes), sizes[buffer] * buffers.count(buffer)
        writer.line(f"const bool {buffer}_streams = {count} * {size} >= CACHE_BYTES / CACHE_SHARE;")


def write_lines(
    writer: LoopWriter, body: Sequence[Statement], vector: Axis, begin: str, end: str
) -> bool:
    """A vector loop in lines; False if it stores nothing that is streamed."""
    stored: dict[str, list[Store]] = {}
    for statement in body:
        if isinstance(statement, Store) and statement.buffer in writer.streamed:
            stored.setdefault(statement.buffer, []).append(statement)
    if not stored:
        return False
    if writer.whole_row not in (None, (begin, end)):
        return False
    begins = {
        buffer: _side_by_side(stores, vector)[0].index.xreplace({vector.symbol: symbol("line")})
        for buffer, stores in stored.items()
    }
    inside = [
        Store(f"{s.buffer}_line", sympy.expand(s.index - begins[s.buffer]), s.value)
        if isinstance(s, Store) and s.buffer in stored
        else s
        for s in body
    ]
    dtypes = {param.name: param.dtype for param in writer.kernel.params}
    tiled = writer.whole_row is not None
    least = min(dtypes[name].itemsize * len(stored[name]) for name in stored)
    length = TILE_COLUMNS if tiled else LINE_BYTES // least
    streams = " || ".join(f"{buffer}_streams" for buffer in stored)
    with writer.block(f"if ({streams})"):
        for buffer, stores in stored.items():
            writer.line(
                f"{storage_type(dtypes[buffer])} {buffer}_line[{length * len(stores)}] "
                "__attribute__((aligned(64)));"
            )
        head = f"for (int64_t line = {begin}, line_end; line < {end}; line = line_end)"
        with writer.block("" if tiled else head):
            if tiled:
                writer.line(f"const int64_t line = {begin}, line_end = {end};")
            for buffer, index in begins.items():
                writer.line(
                    f"{storage_type(dtypes[buffer])} *const {buffer}_to = "
                    f"{buffer} + {writer.printer.index_text(index)};"
                )
            if not tiled:
                buffer = next(iter(stored))
                of_each = f" / {len(stored[buffer])}" if len(stored[buffer]) > 1 else ""
                writer.line(f"line_end = line + {length} - past_boundary({buffer}_to){of_each};")
                writer.line(f"line_end = line_end < {end} ? line_end : {end};")
            write_loop(writer, inside, vector, "line", "line_end")
            function = "stream_row" if tiled else "stream_line"
            for buffer, stores in stored.items():
                count = "line_end - line"
                count = f"{len(stores)} * ({count})" if len(stores) > 1 else count
                writer.line(f"{function}({buffer}_line, {buffer}_to, {count}, {buffer}_streams);")
    with writer.block("else"):
        write_loop(writer, body, vector, begin, end)
    return True
