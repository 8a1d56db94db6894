"""The innermost loop of a row with its reductions: whole blocks of lanes, then the rest of the row.

    float v1_lanes[32] = 0;                                LANES accumulators, for a part of the row
    for (block = part; block < stop; block += 32)
      #pragma omp simd
      for (c = 0; c < 32; ++c) { r0 = block + c; ...; v1_lanes[c] += v0; }
    v1_all += sum_in_pairs<32>(v1_lanes);
    #pragma omp simd reduction(+:v1_part)
    for (r0 = whole; r0 < end; ++r0) { ...; v1_part += v0; }                fewer than 32 elements
    v1_all += v1_part;

The number of lanes and the order of the additions are the same at every ISA level. GCC keeps the
lanes in registers if the loop body is small. Sums over rows of bfloat16 alone take words of two
(`bfloat16_words`): even elements in the first half of the lanes, odd ones in the second, and so in
each whole block of a kept row, if all loops on kept rows take words.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.bfloat16_words import Words, in_words, write_elements, write_word
from flambeau_inductor.codegen.cpp.elements import write_element
from flambeau_inductor.codegen.cpp.float16_rows import (
    converted,
    declare_float_rows,
    narrow_rows,
    on_rows,
    staged_chunks,
    widen_rows,
)
from flambeau_inductor.codegen.cpp.peel import write_vector_loop
from flambeau_inductor.codegen.cpp.plan import COSTLY, dependents, statement_cost, varies
from flambeau_inductor.codegen.cpp.reductions import (
    LANES,
    PART_LENGTH,
    accumulator_of,
    column_take,
    places,
)
from flambeau_inductor.ir import CheckIndex, Compute, Load, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.cpp.reductions import Accumulator
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Statement
    from flambeau_inductor.scheduler.phases import Phase

LANES_OF_WORD = {"low": "c", "high": f"c + {LANES // 2}"}
"""The lane of each element of word c in a block."""

LONGEST_BODY = 40
"""Statements of a loop that is written more than once."""

PLAIN_ROW = 2 * LANES
"""Rows known to be this short are accumulated in one vector: lanes would cost more."""


def write_accumulation_loop(
    writer: LoopWriter, phase: Phase, accumulators: dict[str, Accumulator], begin: str, end: str
) -> None:
    """The loop of a phase along the innermost inner axis."""
    axis = writer.row_axis
    fixed, inside = _split_body(writer, phase)
    count = int(end) if begin == "0" and end.isdigit() else None
    is_long = count is None or count > PLAIN_ROW
    lanes = is_long and any(accumulator.wants_lanes for accumulator in accumulators.values())
    words = _phase_in_words(writer, phase, inside)
    if words is not None and _uses_rows(phase):
        words = words if is_long and _keeps_words(writer) else None
    with writer.block("") if lanes or words else nullcontext():
        writer.statements(s for s in fixed if not isinstance(s, Store))
        if lanes or (words is not None and _uses_rows(phase)):
            whole = f"{axis.symbol.name}_whole" if count is None else str(count // LANES * LANES)
            if count is None:
                writer.line(
                    f"const int64_t {whole} = {begin} + ({end} - {begin}) / {LANES} * {LANES};"
                )
            if lanes:
                _write_lanes(writer, phase, accumulators, inside, begin, whole, words)
            else:
                _write_blocks(writer, phase, words, begin, whole)
            begin = whole
        if begin != end:
            _write_plain(writer, phase, accumulators, inside, begin, end)
        writer.statements(s for s in fixed if isinstance(s, Store))


def _split_body(writer: LoopWriter, phase: Phase) -> tuple[list[Statement], list[Statement]]:
    """A phase's inner statements that do not vary along the innermost axis, and those that do."""
    fetched = {*phase.fetches, *(sort.name for sort in phase.sorted)}
    body = [s for s in phase.inner if getattr(s, "name", None) not in fetched]
    moving = dependents(tuple(body), {writer.row_axis.symbol.name, *fetched})
    return [s for s in body if not varies(s, moving)], [s for s in body if varies(s, moving)]


def _write_lanes(
    writer: LoopWriter,
    phase: Phase,
    accumulators: dict[str, Accumulator],
    inside: Sequence[Statement],
    begin: str,
    end: str,
    words: Words | None,
) -> None:
    """Parts of whole blocks: the lanes of each part are joined to the whole."""
    name = writer.row_axis.symbol.name
    with writer.block(f"for (int64_t part = {begin}; part < {end}; part += {PART_LENGTH})"):
        writer.line(
            f"const int64_t stop = part + {PART_LENGTH} < {end} ? part + {PART_LENGTH} : {end};"
        )
        for key, accumulator in accumulators.items():
            for ctype, suffix, first in accumulator.lanes or accumulator.part[:1]:
                array = f"{key}_lanes{suffix}"
                writer.line(f"{ctype} {array}[{LANES}] __attribute__((aligned(64)));")
                writer.line(f"for (int64_t c = 0; c < {LANES}; ++c) {array}[c] = {first};")
        rows = None
        if words is None and not phase.sorts:
            rows = on_rows(inside, writer.row_axis, begin="block", outside=writer.dtypes)
        with writer.block(f"for (int64_t block = part; block < stop; block += {LANES})"):
            if rows is not None:
                declare_float_rows(writer, rows, LANES)
                widen_rows(writer, rows, writer.row_axis, "block", str(LANES))
                inside = rows.body
            if any("{step}" in text for a in accumulators.values() for text in a.lane_take):
                writer.line(f"const int32_t step = (int32_t)((block - part) / {LANES});")
            writer.simd(_check(inside))
            with writer.loop("c", "0", str(LANES // 2 if words else LANES)):
                if words is not None:
                    writer.line(f"const int64_t {name} = block + 2 * c;")
                    for side in write_elements(writer, words, _fetches(phase)):
                        lane = LANES_OF_WORD[side]
                        for kept in phase.keeps:
                            writer.line(f"keep_{kept}[block + {lane}] = {kept};")
                        _take_in_lanes(writer, phase, accumulators, f"[{lane}]")
                else:
                    writer.line(f"const int64_t {name} = block + c;")
                    write_element(writer, phase, inside)
                    _take_in_lanes(writer, phase, accumulators, "[c]")
            if rows is not None:
                narrow_rows(writer, rows, writer.row_axis, "block", str(LANES))
        for key, accumulator in accumulators.items():
            _join_lanes(writer, key, accumulator, by_words=words is not None)


def _phase_in_words(writer: LoopWriter, phase: Phase, inside: Sequence[Statement]) -> Words | None:
    """The body on words of bfloat16, where it only sums and multiplies up, or stores; else None."""
    kept = (*phase.keeps, *phase.fetches)
    if writer.checked or phase.sorts or phase.sorted:
        return None
    if len(writer.kernel.inner) > 1 and _uses_rows(phase):
        return None
    if any(writer.dtypes[name] is not torch.float32 for name in kept):
        return None
    takes = [accumulator_of(reduce, writer.dtypes[reduce.value]) for reduce in phase.reduces]
    if any(accumulator.pairs is None for accumulator in takes) or (phase.keeps and not takes):
        return None
    words = in_words(inside, writer.row_axis)
    return None if words is None or (words.stores and takes) else words


def _keeps_words(writer: LoopWriter) -> bool:
    """Whether all loops that keep or fetch rows of values take words."""
    return all(
        _phase_in_words(writer, phase, _split_body(writer, phase)[1]) is not None
        for phase in writer.phases
        if _uses_rows(phase)
    )


def _fetches(phase: Phase) -> dict[str, list[str]]:
    """The lines that fetch an element of a word from rows kept by words."""
    return {
        side: [f"const float {name} = keep_{name}[block + {lane}];" for name in phase.fetches]
        for side, lane in LANES_OF_WORD.items()
    }


def _write_blocks(
    writer: LoopWriter, phase: Phase, words: Words | None, begin: str, end: str
) -> None:
    """Blocks of a loop without reductions, on rows kept by words."""
    assert words is not None
    name = writer.row_axis.symbol.name
    with writer.block(f"for (int64_t block = {begin}; block < {end}; block += {LANES})"):
        writer.simd(None)
        with writer.loop("c", "0", str(LANES // 2)):
            writer.line(f"const int64_t {name} = block + 2 * c;")
            write_word(writer, words, _fetches(phase))


def _uses_rows(phase: Phase) -> bool:
    """Whether a phase keeps, fetches or sorts rows of values."""
    return bool(phase.keeps or phase.fetches or phase.sorts or phase.sorted)


def _take_in_lanes(
    writer: LoopWriter, phase: Phase, accumulators: dict[str, Accumulator], lane: str
) -> None:
    """The values of an element, taken into a lane of each reduction."""
    for reduce in phase.reduces:
        accumulator = accumulators[reduce.name]
        takes = accumulator.lane_take or column_take(
            accumulator, reduce, writer.dtypes[reduce.value]
        )
        where = places("q", f"{reduce.name}_lanes", lane)
        _write_takes(writer, takes, reduce.name, reduce.value, where)


def _join_lanes(writer: LoopWriter, key: str, accumulator: Accumulator, *, by_words: bool) -> None:
    """The lanes of a part, joined to the whole; `by_words`: those of even elements, then those of
    odd ones, which pairs keep apart up to the last.
    """
    whole = places("s", f"{key}_all")
    if accumulator.lanes:
        name = writer.row_axis.symbol.name
        position = re.sub(rf"\b{name}\b", "(part + offset)", writer.position())
        with writer.block(""):
            for text in accumulator.lane_join:
                lanes = places("q", f"{key}_lanes")
                blocks = f"((stop - part) / {LANES})"
                writer.line(text.format(**whole, **lanes, blocks=blocks, at=position))
        return
    if accumulator.pairs is not None:
        half, pairs = LANES // 2, accumulator.pairs
        total = f"{pairs}<{LANES}>({key}_lanes)"
        if by_words:
            odd = f"{pairs}<{half}>({key}_lanes + {half})"
            total = f"{pairs}<{half}>({key}_lanes) {accumulator.clauses[0]} {odd}"
        writer.line(f"const {accumulator.part[0][0]} {key}_sum = {total};")
        for text in accumulator.join:
            writer.line(text.format(**whole, **places("q", f"{key}_sum")))
        return
    with writer.loop("c", "0", str(LANES)):
        for text in accumulator.take:
            writer.line(text.format(**places("q", f"{key}_all"), v=f"{key}_lanes[c]"))


def _write_plain(
    writer: LoopWriter,
    phase: Phase,
    accumulators: dict[str, Accumulator],
    inside: Sequence[Statement],
    begin: str,
    end: str,
) -> None:
    """A vector loop: a vector register accumulates parts, which then join the whole. What is left
    of a short row after whole vectors is another loop, which GCC else computes by scalars.
    """
    if not accumulators and not _uses_rows(phase):
        write_vector_loop(writer, writer.row_axis, begin, end, tuple(inside), ())
        return
    for key, accumulator in accumulators.items():
        for ctype, suffix, start in accumulator.part:
            writer.line(f"{ctype} {key}_part{suffix} = {start};")
    rows = None
    if not phase.sorts:
        dtypes = converted(begin, end)
        rows = on_rows(inside, writer.row_axis, dtypes, outside=writer.dtypes)
    if rows is None:
        _write_parts(writer, phase, accumulators, inside, _parts(accumulators, inside, begin, end))
    else:
        chunks = staged_chunks(writer, rows, writer.row_axis, begin, end)
        with writer.block(""), chunks as bounds:
            parts = _parts(accumulators, rows.body, *bounds)
            _write_parts(writer, phase, accumulators, rows.body, parts)
    for key, accumulator in accumulators.items():
        for text in accumulator.join if accumulator.vectorised else ():
            writer.line(text.format(**places("s", f"{key}_all"), **places("q", f"{key}_part")))


def _parts(
    accumulators: dict[str, Accumulator], inside: Sequence[Statement], begin: str, end: str
) -> list[tuple[str, str]]:
    """Where a loop that accumulates is cut."""
    in_vectors = all(accumulator.vectorised for accumulator in accumulators.values())
    only_sums = accumulators and all(each.pairs is not None for each in accumulators.values())
    # Sums that cost nothing else are sooner added by scalars than from another vector's lanes.
    if not in_vectors or (only_sums and sum(map(statement_cost, inside)) < COSTLY):
        return [(begin, end)]
    return _vector_parts(begin, end, inside)


def _write_parts(
    writer: LoopWriter,
    phase: Phase,
    accumulators: dict[str, Accumulator],
    inside: Sequence[Statement],
    parts: Sequence[tuple[str, str]],
) -> None:
    """Loops over parts of a row, which accumulate in the same variables."""
    clauses = [_check(inside)]
    for key, accumulator in accumulators.items():
        for (_, suffix, _), sign in zip(accumulator.part, accumulator.clauses, strict=True):
            clauses.append((f"{key}_part{suffix}", sign))
    for first, last in parts:
        if all(accumulator.vectorised for accumulator in accumulators.values()):
            writer.simd(*clauses)
        with writer.loop(writer.row_axis.symbol.name, first, last):
            write_element(writer, phase, inside)
            for reduce in phase.reduces:
                where, takes = places("q", f"{reduce.name}_part"), accumulators[reduce.name].take
                _write_takes(writer, takes, reduce.name, reduce.value, where)


def _vector_parts(begin: str, end: str, inside: Sequence[Statement]) -> list[tuple[str, str]]:
    """Where a loop is cut so that its parts are whole vectors, wide ones and then narrower ones."""
    if not (begin.isdigit() and end.isdigit()) or len(inside) > LONGEST_BODY:
        return [(begin, end)]
    first, stop, result = int(begin), int(end), []
    sizes = [s.dtype.itemsize for s in inside if isinstance(s, (Load, Compute))]
    width = 64 // max(min(sizes, default=4), 1)
    while width > 4 and first < stop:
        last = first + (stop - first) // width * width
        if last > first:
            result.append((str(first), str(last)))
        first, width = last, width // 2
    return [*result, (str(first), end)] if first < stop else result or [(begin, end)]


def _write_takes(
    writer: LoopWriter, takes: Sequence[str], name: str, value: str, where: dict[str, str]
) -> None:
    for text in takes:
        writer.line(
            text.format(
                **where,
                **places("s", f"{name}_all"),
                v=value,
                at=writer.position(),
                name=name,
                step="step",
            )
        )


def _check(inside: Sequence[Statement]) -> tuple[str, str] | None:
    """The clause of a loop that checks indices."""
    return ("bad", "|") if any(isinstance(s, CheckIndex) for s in inside) else None
