"""float16 in vector loops: the machine's instructions, which GCC's vectoriser does not use, convert
chunks of rows.

    v0 = load b0[i0];  v1 = cast v0 :f32;  v2 = exp v1;  v3 = cast v2 :f16;  store b1[i0] v3

    for (chunk = begin; chunk < end; chunk += 256)
      widen_float16(b0 + chunk, v1_half, ...)
      for (i0 = chunk; i0 < chunk_end; ++i0) v1 = v1_half[i0 - chunk], v2_half[i0 - chunk] = exp(v1)
      narrow_float16(v2_half, b1 + chunk, ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.cpp.plan import stride_along
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import Compute, Load, Store, defined_name, operands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Statement

CHUNK = 256
"""So many elements are converted at a time: their floats stay in the first-level cache."""

SHORT = 32
"""Loops known to be shorter than this are left alone."""


@dataclass(frozen=True)
class Row:
    """A row of floats in scratch memory for the float16 elements of a buffer from `index` on."""

    name: str
    buffer: str
    index: sympy.Expr


@dataclass(frozen=True)
class Float16Rows:
    """A loop's body on rows of floats: those filled before a chunk and those emptied after it."""

    body: tuple[Statement, ...]
    widened: tuple[Row, ...]
    narrowed: tuple[Row, ...]


def on_rows(body: Sequence[Statement], vector: Axis) -> Float16Rows | None:
    """The body with float16 loads that are only cast to float32, and float16 stores of what is cast
    from it, on rows of floats; None if there are none.
    """
    values = {name: s for s in body if (name := defined_name(s)) is not None}
    place = vector.symbol - symbol("chunk")
    result: list[Statement] = []
    widened: list[Row] = []
    narrowed: list[Row] = []
    whole = {s.name for s in body if isinstance(s, Load) and _is_row(s, vector, values)}
    whole -= {
        name
        for s in body
        if not _casts(s, torch.float16, torch.float32, values)
        for name in operands(s)
    }
    for statement in body:
        match statement:
            case Compute(name=name, args=(x,)) if (
                _casts(statement, torch.float16, torch.float32, values) and x in whole
            ):
                load = values[x]
                assert isinstance(load, Load)
                widened.append(Row(f"{name}_half", load.buffer, load.index))
                result.append(Load(name, torch.float32, f"{name}_half", place))
            case Store(buffer=buffer, index=index, value=value, mode="", mask=None) if _is_row(
                statement, vector, values
            ) and _casts(values.get(value), torch.float32, torch.float16, values):
                row = Row(f"{buffer}_half{len(narrowed)}", buffer, index)
                narrowed.append(row)
                result.append(Store(row.name, place, operands(values[value])[0]))
            case Load(name=name) if name in whole:
                pass
            case _:
                result.append(statement)
    if not widened and not narrowed:
        return None
    used = {name for s in result for name in operands(s)}
    kept = tuple(
        s
        for s in result
        if not _casts(s, torch.float32, torch.float16, values) or s.name in used  # type: ignore[union-attr]
    )
    return Float16Rows(kept, tuple(widened), tuple(narrowed))


def _is_row(statement: Load | Store, vector: Axis, values: dict[str, Statement]) -> bool:
    """Whether an access goes along a row, without a mask, and to a place known before the loop."""
    if isinstance(statement, Load) and (
        statement.mask is not None or statement.dtype is not torch.float16
    ):
        return False
    return stride_along(statement.index, vector) is sympy.S.One and free_names(
        statement.index
    ).isdisjoint(values)


def _casts(
    statement: Statement | None, source: torch.dtype, to: torch.dtype, values: dict[str, Statement]
) -> bool:
    """Whether a statement casts a value of this loop from one dtype to another."""
    if not isinstance(statement, Compute) or statement.op != "cast" or statement.dtype is not to:
        return False
    operand = values.get(statement.args[0])
    return operand is not None and operand.dtype is source  # type: ignore[union-attr]


def write_chunks(writer: LoopWriter, rows: Float16Rows, vector: Axis, begin: str, end: str) -> None:
    """The loop in chunks."""
    with writer.block(""):  # a kernel may have several such loops, on the same buffers
        _write_chunks(writer, rows, vector.symbol.name, begin, end)


def _write_chunks(writer: LoopWriter, rows: Float16Rows, name: str, begin: str, end: str) -> None:
    for row in (*rows.widened, *rows.narrowed):
        writer.line(f"float {row.name}[{CHUNK}] __attribute__((aligned(64)));")
    with writer.block(f"for (int64_t chunk = {begin}; chunk < {end}; chunk += {CHUNK})"):
        writer.line(f"const int64_t chunk_end = chunk + {CHUNK} < {end} ? chunk + {CHUNK} : {end};")
        _convert(writer, rows.widened, name, "widen_float16({place}, {row}, chunk_end - chunk);")
        writer.simd(None)
        with writer.loop(name, "chunk", "chunk_end"):
            writer.statements(rows.body)
        _convert(writer, rows.narrowed, name, "narrow_float16({row}, {place}, chunk_end - chunk);")


def _convert(writer: LoopWriter, rows: Sequence[Row], index: str, call: str) -> None:
    """A call for each row, where the loop's index stands at the beginning of the chunk."""
    if not rows:
        return
    with writer.block(""):
        writer.line(f"const int64_t {index} = chunk;")
        for row in rows:
            place = f"{row.buffer} + {writer.printer.index_text(row.index)}"
            writer.line(call.format(place=place, row=row.name))


def is_short(begin: str, end: str) -> bool:
    """Whether a loop is known to be short."""
    return begin.isdigit() and end.isdigit() and int(end) - int(begin) < SHORT
