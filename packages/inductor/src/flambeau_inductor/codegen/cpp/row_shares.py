"""Kernels that reduce rows and columns at once: a thread takes shares of the rows, and adds up the
columns of a share in the memory of its partial results.

    for (int64_t share0 = begin; share0 < end; ++share0) {
      const int64_t row = share(8192, share0, 64, 1), row_end = share(8192, share0 + 1, 64, 1);
      for (int64_t r0 = 0; r0 < 1024; ++r0) b3[1024 * share0 + r0] = 0;
      for (int64_t i0 = row; i0 < row_end; ++i0) { ...; b3[1024 * share0 + r0] += v7; ... }
    }

A partial result is a row that stays in the first-level cache while its share is computed.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp.cpp_types import literal
from flambeau_inductor.ir import SHARE, ColumnReduce, Store
from flambeau_inductor.split_reduction import identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import LoopKernel, Statement

ROWS = ("row", "row_end")
"""Where the rows of a share begin and end."""

MODES = {"sum": "add", "max": "max", "min": "min"}
"""Kind of ColumnReduce -> the mode of a store that takes one more value."""

IDENTITIES = {"add": "sum", "max": "amax", "min": "amin"}


def accumulate_in_memory(kernel: LoopKernel) -> LoopKernel:
    """The kernel with stores that take the values of ColumnReduces one by one."""
    columns = {s.name: s for s in kernel.body if isinstance(s, ColumnReduce)}

    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Store) and statement.value in columns:
            column = columns[statement.value]
            return replace(statement, value=column.value, mode=MODES[column.kind])
        return statement

    body = tuple(changed(s) for s in kernel.body if not isinstance(s, ColumnReduce))
    return replace(kernel, body=body) if columns else kernel


@contextmanager
def share_loop(writer: LoopWriter) -> Iterator[None]:
    """The loop over shares, around the ROWS of each."""
    kernel = writer.kernel
    rows, shares = writer.product(kernel.outer), writer.printer.index_text(kernel.shares)
    name = SHARE.name
    row, row_end = ROWS
    with writer.loop(name, "begin", "end"):
        writer.line(
            f"const int64_t {row} = share({rows}, {name}, {shares}, 1), "
            f"{row_end} = share({rows}, {name} + 1, {shares}, 1);"
        )
        for statement in kernel.body:
            if isinstance(statement, Store) and SHARE in statement.index.free_symbols:
                _write_start(writer, statement)
        yield


def _write_start(writer: LoopWriter, store: Store) -> None:
    """The partial result of no row."""
    dtype = next(p.dtype for p in writer.kernel.params if p.name == store.buffer)
    start = literal(identity(IDENTITIES[store.mode], dtype), dtype)
    with ExitStack() as loops:
        for axis in writer.kernel.inner:
            loops.enter_context(writer.loop(axis.symbol.name, "0", writer.size(axis)))
        writer.line(f"{store.buffer}[{writer.printer.index_text(store.index)}] = {start};")
