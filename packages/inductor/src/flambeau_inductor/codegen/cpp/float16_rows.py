"""float16 in vector loops: the machine's instructions, which GCC's vectoriser does not use, convert
chunks of rows. Short rows of bfloat16 are converted likewise, since few words fill no vector.

    v0 = load b0[i0];  v1 = cast v0 :f32;  v2 = exp v1;  v3 = cast v2 :f16;  store b1[i0] v3

    for (chunk = begin; chunk < end; chunk += 256)
      widen_float16(b0 + chunk, v1_half, ...)
      for (i0 = chunk; i0 < chunk_end; ++i0) v1 = v1_half[i0 - chunk], v2_half[i0 - chunk] = exp(v1)
      narrow_float16(v2_half, b1 + chunk, ...)
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.cpp.cpp_types import HALVES
from flambeau_inductor.codegen.cpp.plan import dependents, stride_along
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import CheckIndex, Compute, Load, Store, defined_name, operands

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Statement

CHUNK = 256
"""So many elements are converted at a time: their floats stay in the first-level cache."""

SHORT = 32
"""Loops known to be shorter than this are left alone by what needs long ones."""

LEAST = 8
"""Shorter rows fill no vector."""

FEW_WORDS = range(40, 129)
"""Rows of bfloat16 known to be so long are converted, too: longer ones are read by words, and those
that are shorter by elements, as measured.
"""

WORDS = 16
"""The words of the widest vector."""

HALF_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Row:
    """A row of floats in scratch memory for the elements of a buffer from `index` on."""

    name: str
    buffer: str
    index: sympy.Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class Float16Rows:
    """A loop's body on rows of floats: those filled before a chunk and those emptied after it."""

    body: tuple[Statement, ...]
    widened: tuple[Row, ...]
    narrowed: tuple[Row, ...]


def on_rows(
    body: Sequence[Statement],
    vector: Axis,
    dtypes: Collection[torch.dtype] = (torch.float16,),
    begin: str = "chunk",
    outside: Mapping[str, torch.dtype] | None = None,
) -> Float16Rows | None:
    """The body with loads of these dtypes that are only cast to float32, and stores of what is cast
    from it to them, on rows of floats that start at `begin` along the axis; None if there are none.
    `outside`: the dtypes of values that the body reads and does not define.
    """
    values = {name: s for s in body if (name := defined_name(s)) is not None}
    known = {**(outside or {}), **{name: s.dtype for name, s in values.items()}}  # type: ignore[union-attr]
    place = vector.symbol - _along(begin)
    result: list[Statement] = []
    widened: list[Row] = []
    narrowed: list[Row] = []
    whole = {
        s.name
        for s in body
        if isinstance(s, Load) and s.dtype in dtypes and _is_row(s, vector, values)
    }
    whole -= {
        name
        for s in body
        if not any(_casts(s, dtype, torch.float32, known) for dtype in dtypes)
        for name in operands(s)
    }
    for statement in body:
        match statement:
            case Compute(name=name, dtype=torch.float32, op="cast", args=(x,)) if x in whole:
                load = values[x]
                assert isinstance(load, Load)
                widened.append(Row(f"{name}_half", load.buffer, load.index, load.dtype))
                result.append(Load(name, torch.float32, f"{name}_half", place))
            case Store(buffer=buffer, index=index, value=value, mode="", mask=None) if _is_row(
                statement, vector, values
            ) and _narrows(values.get(value), dtypes, known):
                row = Row(f"{buffer}_half{len(narrowed)}", buffer, index, values[value].dtype)  # type: ignore[union-attr]
                narrowed.append(row)
                result.append(Store(row.name, place, operands(values[value])[0]))
            case Load(name=name) if name in whole:
                pass
            case _:
                result.append(statement)
    if not widened and not narrowed:
        return None
    used = {name for s in result for name in operands(s)}
    kept = tuple(s for s in result if not _narrows(s, dtypes, known) or defined_name(s) in used)
    return Float16Rows(kept, tuple(widened), tuple(narrowed))


def _narrows(
    statement: Statement | None, dtypes: Collection[torch.dtype], known: Mapping[str, torch.dtype]
) -> bool:
    """Whether a statement casts a float32 to one of these dtypes."""
    return any(_casts(statement, torch.float32, dtype, known) for dtype in dtypes)


def _is_row(statement: Load | Store, vector: Axis, values: dict[str, Statement]) -> bool:
    """Whether an access goes along a row, without a mask, and to a place known before the loop."""
    if isinstance(statement, Load) and statement.mask is not None:
        return False
    return stride_along(statement.index, vector) is sympy.S.One and free_names(
        statement.index
    ).isdisjoint(values)


def _casts(
    statement: Statement | None,
    source: torch.dtype,
    to: torch.dtype,
    known: Mapping[str, torch.dtype],
) -> bool:
    """Whether a statement casts a value from one dtype to another."""
    if not isinstance(statement, Compute) or statement.op != "cast" or statement.dtype is not to:
        return False
    return known.get(statement.args[0]) is source


def gathered_float16(body: Sequence[Statement], vector: Axis) -> frozenset[str]:
    """The loads of float16 at places that differ from element to element along an axis by no fixed
    step: no processor gathers 16 bits into vectors.
    """
    name = vector.symbol.name
    moving = dependents(tuple(body), {name}) - {name}
    return frozenset(
        s.name
        for s in body
        if isinstance(s, Load)
        and s.dtype is torch.float16
        and (stride_along(s.index, vector) is None or not free_names(s.index).isdisjoint(moving))
    )


def converts_float16(statement: Statement, known: Mapping[str, torch.dtype]) -> bool:
    """Whether a statement casts from float16 or to it."""
    if not isinstance(statement, Compute) or statement.op != "cast":
        return False
    return torch.float16 in (statement.dtype, known.get(statement.args[0]))


def write_chunks(writer: LoopWriter, rows: Float16Rows, vector: Axis, begin: str, end: str) -> None:
    """The loop in chunks."""
    with writer.block(""):  # a kernel may have several such loops, on the same buffers
        _write_chunks(writer, rows, vector, begin, end)


def _write_chunks(
    writer: LoopWriter, rows: Float16Rows, vector: Axis, begin: str, end: str
) -> None:
    with staged_chunks(writer, rows, vector, begin, end) as (first, last):
        if _only_rows(rows):
            if first.isdigit() and last.isdigit():
                last = str(int(first) + whole_vectors(int(last) - int(first)))
            else:
                writer.line(f"const int64_t chunk_stop = {first} + ({last} - {first} + 7) / 8 * 8;")
                last = "chunk_stop"
        checks = any(isinstance(s, CheckIndex) for s in rows.body)
        writer.simd(("bad", "|") if checks else None)
        with writer.loop(vector.symbol.name, first, last):
            writer.statements(rows.body)


def _only_rows(rows: Float16Rows) -> bool:
    """Whether a body has no memory but rows of floats: then it may go beyond their ends."""
    names = {row.name for row in (*rows.widened, *rows.narrowed)}
    if any(isinstance(s, CheckIndex) for s in rows.body):
        return False
    return all(s.buffer in names for s in rows.body if isinstance(s, (Load, Store)))


def whole_vectors(count: int) -> int:
    """The length of scratch memory for so many elements."""
    return -(-count // LEAST) * LEAST


@contextmanager
def staged_chunks(
    writer: LoopWriter, rows: Float16Rows, vector: Axis, begin: str, end: str
) -> Iterator[tuple[str, str]]:
    """The loop over chunks, whose rows are widened before, and narrowed after, what is written
    inside: a loop between the given bounds.
    """
    count = int(end) - int(begin) if begin.isdigit() and end.isdigit() else None
    if count is not None and count <= CHUNK:
        declare_float_rows(writer, rows, whole_vectors(count))
        with writer.block(""):
            writer.line(f"const int64_t chunk = {begin};")
            widen_rows(writer, rows, vector, "chunk", str(count))
            yield begin, end
            narrow_rows(writer, rows, vector, "chunk", str(count))
        return
    declare_float_rows(writer, rows, CHUNK)
    with writer.block(f"for (int64_t chunk = {begin}; chunk < {end}; chunk += {CHUNK})"):
        writer.line(f"const int64_t chunk_end = chunk + {CHUNK} < {end} ? chunk + {CHUNK} : {end};")
        widen_rows(writer, rows, vector, "chunk", "chunk_end - chunk")
        yield "chunk", "chunk_end"
        narrow_rows(writer, rows, vector, "chunk", "chunk_end - chunk")


def declare_float_rows(writer: LoopWriter, rows: Float16Rows, size: int) -> None:
    """Scratch memory for rows of so many elements."""
    for row in (*rows.widened, *rows.narrowed):
        writer.line(f"float {row.name}[{size}] __attribute__((aligned(64)));")


def widen_rows(writer: LoopWriter, rows: Float16Rows, vector: Axis, begin: str, count: str) -> None:
    """Fill the rows that the body reads, from `begin` on along the axis."""
    for row in rows.widened:
        place = _place(writer, row, vector, begin)
        guards = writer.printer.guards
        valid = " && ".join(guards[name] for name in sorted(free_names(row.index) & guards.keys()))
        length = f"{valid} ? {count} : 0" if valid else count
        writer.line(f"widen_{HALVES[row.dtype]}({place}, {row.name}, {length});")


def narrow_rows(
    writer: LoopWriter, rows: Float16Rows, vector: Axis, begin: str, count: str
) -> None:
    """Store the rows that the body has filled."""
    for row in rows.narrowed:
        place = _place(writer, row, vector, begin)
        writer.line(f"narrow_{HALVES[row.dtype]}({row.name}, {place}, {count});")


def _place(writer: LoopWriter, row: Row, vector: Axis, begin: str) -> str:
    index = row.index.xreplace({vector.symbol: _along(begin)})
    writer.make_safe(index)
    writer.flush()
    return f"{row.buffer} + {writer.printer.index_text(index)}"


def _along(begin: str) -> sympy.Expr:
    """A place along an axis, a number or a variable, as an index."""
    return sympy.Integer(begin) if begin.isdigit() else symbol(begin)


def converted(begin: str, end: str, *, in_words: bool = False) -> tuple[torch.dtype, ...]:
    """The dtypes that a loop takes from rows of floats, by its length. `in_words`: else it reads
    bfloat16 by words, which are as fast where they fill vectors.
    """
    if not (begin.isdigit() and end.isdigit()):
        return (torch.float16,)
    count = int(end) - int(begin)
    if count < LEAST:
        return ()
    is_word_row = in_words and count % (2 * WORDS) == 0
    return HALF_DTYPES if count in FEW_WORDS and not is_word_row else (torch.float16,)


def is_short(begin: str, end: str) -> bool:
    """Whether a loop is known to be short."""
    return begin.isdigit() and end.isdigit() and int(end) - int(begin) < SHORT
