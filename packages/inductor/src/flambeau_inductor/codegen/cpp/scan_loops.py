"""Loops over rows that scan, in the direction of the Scans: element after element, or, where there
is more to compute than a few additions, in blocks with vector loops before and behind the Scans.

    double v2_carry = 0;
    for (block = 0; block < 512; block += 64) {
      #pragma omp simd
      for (c = 0; c < count; ++c) { r0 = block + c; ...; v1_block[c] = v1; }     vectorised
      for (c = 0; c < count; ++c) { v2_carry += v1_block[c]; v2_block[c] = v2_carry; }
      #pragma omp simd
      for (c = 0; c < count; ++c) { v2 = v2_block[c]; ...; b1[r0] = v3; }        vectorised
    }

Sums of floats (`scan_sum`) read a row of memory, and write one, without arrays between.

Where columns lie side by side each has a carry, and the loop over them is a vector loop.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.cpp.cpp_types import storage_type, value_type
from flambeau_inductor.codegen.cpp.elements import write_element
from flambeau_inductor.codegen.cpp.float16_rows import (
    HALF_DTYPES,
    converts_float16,
    declare_float_rows,
    narrow_rows,
    on_rows,
    widen_rows,
)
from flambeau_inductor.codegen.cpp.plan import (
    COSTLY,
    dependents,
    statement_cost,
    static_product,
    stride_along,
    varies,
)
from flambeau_inductor.codegen.cpp.reductions import places
from flambeau_inductor.codegen.cpp.scans import carry_start, carry_type, is_vector_sum, take
from flambeau_inductor.codegen.cpp.sorts import collect, fetch
from flambeau_inductor.indexing.expressions import free_names, symbol
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Load,
    Scan,
    Store,
    defined_name,
    index_of,
    operands,
    scan_direction,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flambeau_inductor.codegen.cpp.reductions import Accumulator
    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Axis, Body, Statement
    from flambeau_inductor.scheduler.phases import Phase

BLOCK = 256
"""Elements between two steps of the vector loops: their arrays stay in the first-level cache."""


@contextmanager
def scan_loops(
    writer: LoopWriter, body: Body, axes: Sequence[Axis], columns: int | None = None
) -> Iterator[None]:
    """The carries of the body's Scans, if any, and loops over some axes in their direction."""
    direction = scan_direction(body)
    with ExitStack() as opened:
        if direction is not None:
            opened.enter_context(writer.block(""))
            _declare_carries(writer, body, columns)
        for axis in axes:
            name, size = axis.symbol.name, writer.size(axis)
            if direction:
                opened.enter_context(writer.block(f"for (int64_t {name} = {size}; {name}-- > 0;)"))
            else:
                opened.enter_context(writer.loop(name, "0", size))
        yield


def _declare_carries(writer: LoopWriter, body: Body, columns: int | None) -> None:
    """The carries of a loop's Scans: of a row, or one each for so many columns."""
    for scan in body:
        if not isinstance(scan, Scan):
            continue
        if columns is None:
            writer.line(f"{carry_type(scan)} {scan.name}_carry = {carry_start(scan)};")
        else:
            writer.line(f"{carry_type(scan)} {scan.name}_carry[{columns}];")
            loop = f"for (int64_t c = 0; c < {columns}; ++c)"
            writer.line(f"{loop} {scan.name}_carry[c] = {carry_start(scan)};")


def write_scan_loop(writer: LoopWriter, phase: Phase, accumulators: dict[str, Accumulator]) -> None:
    """A phase of a row that scans."""
    blocks = _Blocks(writer, phase)
    with writer.block(""):
        writer.statements(blocks.fixed)
        if any(
            statement_cost(s) >= COSTLY
            or converts_float16(s, writer.dtypes)
            or blocks.adds_vectors(s)
            for s in blocks.moving
        ):
            blocks.write(accumulators)
            return
        with scan_loops(writer, phase.inner, writer.kernel.inner):
            write_element(writer, phase, blocks.moving)
            for reduce in phase.reduces:
                _accumulate(writer, accumulators[reduce.name], reduce.name, reduce.value)


class _Blocks:
    """Writes one phase. `stages` are the statements before the first Scan, behind it, and so on;
    what a stage defines for a later one, or for a Scan, stands in an array of a block.
    """

    def __init__(self, writer: LoopWriter, phase: Phase) -> None:
        self.writer = writer
        self.phase = phase
        self.axis = writer.kernel.inner[-1]
        self.reverse = bool(scan_direction(phase.inner))
        axes = {axis.symbol.name for axis in writer.kernel.inner}
        self.scans = {s.name for s in phase.inner if isinstance(s, Scan)}
        self.fetched = {*phase.fetches, *(sort.name for sort in phase.sorted)}
        moving = dependents(phase.inner, axes | self.scans | self.fetched)
        self.fixed = tuple(
            s for s in phase.inner if not isinstance(s, (Scan, Store)) and not varies(s, moving)
        )
        self.moving = tuple(
            s for s in phase.inner if s not in self.fixed and defined_name(s) not in self.fetched
        )
        self.values = {name: s for s in writer.kernel.body if (name := defined_name(s)) is not None}
        self.whole = {reduce.value for reduce in phase.reduces} | set(phase.keeps)
        self.whole |= {sort.value for sort in phase.sorts}
        self.stage_of = self.number_stages()
        self.read_rows = {
            s.name: s for s in self.moving if isinstance(s, Load) and self.is_row(s, "read")
        }
        self.stored_rows = self.stored_sums()
        self.in_blocks = self.values_in_blocks()

    def adds_vectors(self, statement: Statement) -> bool:
        """Whether a statement is a Scan by `scan_sum`, of values in memory or in an array."""
        if not isinstance(statement, Scan) or not is_vector_sum(statement, self.values):
            return False
        name = self.scanned(statement)
        return name in self.read_rows or name in self.in_blocks

    def is_row(self, statement: Load | Store, access: str) -> bool:
        """Whether an access goes along a row of a buffer that is only read, or written once."""
        (param,) = (p for p in self.writer.kernel.params if p.name == statement.buffer)
        uses = [
            s
            for s in self.writer.kernel.body
            if isinstance(s, (Load, Store)) and s.buffer == statement.buffer
        ]
        return (
            statement.mask is None
            and getattr(statement, "mode", "") == ""
            and param.access == access
            and (access == "read" or len(uses) == 1)
            and stride_along(statement.index, self.axis) is sympy.S.One
            and free_names(statement.index).isdisjoint(self.values)
        )

    def stored_sums(self) -> dict[str, Store]:
        """The Scans by `scan_sum` whose results are only stored, in a row, with the Stores."""
        moving = {defined_name(s) for s in self.moving}
        result = {}
        for scan in self.moving:
            if not isinstance(scan, Scan) or scan.name in self.whole:
                continue
            if not is_vector_sum(scan, self.values) or self.scanned(scan) not in moving:
                continue
            match [s for s in self.moving if varies(s, {scan.name})]:
                case [Store() as store] if self.is_row(store, "write"):
                    result[scan.name] = store
        return result

    def row(self, name: str) -> str:
        """Where the elements of a value in a block begin: in memory or an array."""
        access = self.read_rows.get(name) or self.stored_rows.get(name)
        if access is None or name in self.in_blocks:
            return f"{name}_block"
        index = access.index.xreplace({self.axis.symbol: symbol("block")})
        return f"{access.buffer} + {self.writer.printer.index_text(index)}"

    def scanned(self, scan: Scan) -> str:
        """The value whose array a Scan reads: floats that `scan_sum` makes doubles itself."""
        source = self.values.get(scan.value)
        if isinstance(source, Compute) and is_vector_sum(scan, self.values):
            (first, *_) = source.args
            if scan.dtype is torch.float64 and self.values.get(first) in self.stage_of:
                return first
        return scan.value

    def number_stages(self) -> dict[Statement, int]:
        """The number of Scans, one behind the other, that a statement comes after."""
        behind: dict[str, int] = {}
        result: dict[Statement, int] = {}
        for statement in self.moving:
            number = max((behind[n] for n in behind if varies(statement, {n})), default=0)
            result[statement] = number
            name = defined_name(statement)
            if name is not None:
                behind[name] = number + isinstance(statement, Scan)
        return result

    def values_in_blocks(self) -> dict[str, Statement]:
        """The values that a loop defines and another one reads."""
        result = {}
        for statement, number in self.stage_of.items():
            name = defined_name(statement)
            if name is None or name in self.stored_rows:
                continue
            if (
                name in self.whole
                or isinstance(statement, Scan)
                or any(
                    self.reads_array(reader, name)
                    if isinstance(reader, Scan)
                    else varies(reader, {name}) and number != stage
                    for reader, stage in self.stage_of.items()
                )
            ):
                result[name] = statement
        return result

    def reads_array(self, scan: Scan, name: str) -> bool:
        """Whether a Scan reads a value from an array of a block."""
        in_memory = name in self.read_rows and is_vector_sum(scan, self.values)
        return self.scanned(scan) == name and not in_memory

    def stage(self, number: int) -> list[Statement]:
        """The statements between two Scans whose results something reads."""
        stored = set(self.stored_rows.values())
        result: list[Statement] = []
        wanted = set(self.in_blocks)
        for s in reversed([s for s, n in self.stage_of.items() if n == number]):
            name = defined_name(s)
            if isinstance(s, Scan) or s in stored or (name is not None and name not in wanted):
                continue
            result.append(s)
            index = index_of(s)
            wanted |= {*operands(s), *(free_names(index) if index is not None else ())}
        return result[::-1]

    def write(self, accumulators: dict[str, Accumulator]) -> None:
        """Blocks of the row."""
        writer = self.writer
        axes = writer.kernel.inner[:-1]
        with scan_loops(writer, self.phase.inner, axes), self.block_loop():
            for name, statement in self.in_blocks.items():
                writer.line(f"{storage_type(statement.dtype)} {name}_block[{BLOCK}];")  # type: ignore[union-attr]
            for number in range(max(self.stage_of.values(), default=0) + 1):
                self.write_stage(number)
                self.write_scans(number)
            self.write_rest(accumulators)

    @contextmanager
    def block_loop(self) -> Iterator[None]:
        """The loop over blocks, of `count` elements from `block` on."""
        writer, static = self.writer, static_product((self.axis,))
        if static is not None and static <= BLOCK:
            with writer.block(""):
                writer.line(f"const int64_t block = 0, count = {static};")
                yield
            return
        size = writer.size(self.axis)
        if self.reverse:
            head = f"int64_t block = ({size} + {BLOCK - 1}) / {BLOCK} * {BLOCK}; block > 0;"
        else:
            head = f"int64_t block = 0; block < {size}; block += {BLOCK}"
        with writer.block(f"for ({head})"):
            if self.reverse:
                writer.line(f"block -= {BLOCK};")
            rest = f"{size} - block"
            writer.line(f"const int64_t count = {rest} < {BLOCK} ? {rest} : {BLOCK};")
            yield

    @contextmanager
    def loop(self, statements: Sequence[Statement], wanted: Iterable[str] = ()) -> Iterator[None]:
        """A loop over a block, in which the values that these statements read are at hand."""
        writer = self.writer
        down = self.reverse and not statements
        head = "int64_t c = count; c-- > 0;" if down else "int64_t c = 0; c < count; ++c"
        with writer.block(f"for ({head})"):
            writer.line(f"const int64_t {self.axis.symbol.name} = block + c;")
            wanted = set(wanted)
            own = {defined_name(s) for s in statements}
            for name, source in self.in_blocks.items():
                read = name in wanted or any(varies(s, {name}) for s in statements)
                if read and name not in own:
                    dtype = source.dtype  # type: ignore[union-attr]
                    test = " != 0" if dtype == torch.bool else ""
                    writer.line(f"const {value_type(dtype)} {name} = {name}_block[c]{test};")
                    writer.replay.values[name] = name
                    writer.replay.dtypes[name] = dtype
            self.fetch(statements, wanted)
            yield

    def fetch(self, statements: Sequence[Statement], wanted: set[str]) -> None:
        """Read what earlier phases kept or sorted."""
        writer, position = self.writer, self.writer.position()
        for sort in self.phase.sorted:
            if sort.name in wanted or any(varies(s, {sort.name}) for s in statements):
                fetch(writer, sort)
        for name in self.phase.fetches:
            if name in wanted or any(varies(s, {name}) for s in statements):
                dtype = writer.dtypes[name]
                test = " != 0" if dtype == torch.bool else ""
                writer.line(f"const {value_type(dtype)} {name} = keep_{name}[{position}]{test};")

    def write_stage(self, number: int) -> None:
        """The statements between two Scans: a vector loop."""
        stage = self.stage(number)
        if not stage:
            return
        writer = self.writer
        checked = any(isinstance(s, CheckIndex) for s in stage)
        rows = None
        if not any(
            name in self.in_blocks and writer.dtypes[name] in HALF_DTYPES  # type: ignore[index]
            for name in map(defined_name, stage)
        ):
            rows = on_rows(stage, self.axis, HALF_DTYPES, "block", writer.dtypes)
        with writer.block("") if rows is not None else nullcontext():
            if rows is not None:
                declare_float_rows(writer, rows, BLOCK)
                widen_rows(writer, rows, self.axis, "block", "count")
                stage = list(rows.body)
            writer.simd(("bad", "|") if checked else None)
            with self.loop(stage):
                writer.statements(stage)
                for s in stage:
                    if (name := defined_name(s)) in self.in_blocks:
                        writer.line(f"{name}_block[c] = {name};")
            if rows is not None:
                narrow_rows(writer, rows, self.axis, "block", "count")

    def write_scans(self, number: int) -> None:
        """The Scans of a stage's values."""
        scans = [s for s, n in self.stage_of.items() if n == number and isinstance(s, Scan)]
        for scan in filter(self.adds_vectors, scans):
            way = "true" if self.reverse else "false"
            rows = f"{self.row(self.scanned(scan))}, {self.row(scan.name)}"
            self.writer.line(f"scan_sum<{way}>({rows}, count, {scan.name}_carry);")
        scans = [scan for scan in scans if not self.adds_vectors(scan)]
        if not scans:
            return
        with self.loop((), (scan.value for scan in scans)):
            for scan in scans:
                step, result = take(scan, scan.value, "")
                self.writer.line(step)
                self.writer.line(f"{scan.name}_block[c] = {result};")

    def write_rest(self, accumulators: dict[str, Accumulator]) -> None:
        """Reduce, keep and collect the values of a block, one by one."""
        phase, writer = self.phase, self.writer
        wanted = {reduce.value for reduce in phase.reduces} | set(phase.keeps)
        wanted |= {sort.value for sort in phase.sorts}
        if not wanted:
            return
        with self.loop((), wanted):
            for name in phase.keeps:
                writer.line(f"keep_{name}[{writer.position()}] = {name};")
            collect(writer, phase)
            for reduce in phase.reduces:
                _accumulate(writer, accumulators[reduce.name], reduce.name, reduce.value)


def _accumulate(writer: LoopWriter, accumulator: Accumulator, name: str, value: str) -> None:
    """One value, taken into the whole of a reduction."""
    whole = places("s", f"{name}_all")
    if not accumulator.vectorised:
        for text in accumulator.take:
            writer.line(text.format(**whole, v=value, at=writer.position()))
        return
    for ctype, suffix, start in accumulator.part:
        writer.line(f"{ctype} {name}_part{suffix} = {start};")
    part = places("q", f"{name}_part")
    for text in accumulator.take:
        writer.line(text.format(**part, v=value))
    for text in accumulator.join:
        writer.line(text.format(**whole, **part))
