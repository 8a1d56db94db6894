"""Writes one kernel of the loop IR as C++: a function that does a share of the work, and the entry
that shares it out.

static void k_part(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end) {
  const float *__restrict b0 = (const float *)buffers[0];
  for (int64_t i0 = begin; i0 < end; ++i0) {
    #pragma omp simd
    for (int64_t i1 = 0; i1 < 768; ++i1) { ... }
  }
}
EXPORT void k(void *const *buffers, const int64_t *ints) { ... k_part(buffers, ints, 0, n); }
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from flambeau_inductor.codegen.cpp.accumulation_loops import write_accumulation_loop
from flambeau_inductor.codegen.cpp.cpp_types import storage_type, value_type
from flambeau_inductor.codegen.cpp.deferred_phases import deferred_columns, deferred_row
from flambeau_inductor.codegen.cpp.float16_rows import (
    declare_float_rows,
    gathered_float16,
    narrow_rows,
    on_rows,
    widen_rows,
)
from flambeau_inductor.codegen.cpp.gathered_rows import fetch_gathered_rows
from flambeau_inductor.codegen.cpp.loop_nests import nest_of, transposed
from flambeau_inductor.codegen.cpp.peel import peel, write_peeled, write_vector_loop
from flambeau_inductor.codegen.cpp.plan import (
    COLUMN_UNIT,
    PARALLEL_WORK,
    choose_plan,
    column_block,
    dependents,
    is_ordered,
    is_scatter,
    is_transposed,
    static_product,
    stride_along,
    varies,
)
from flambeau_inductor.codegen.cpp.reductions import (
    accumulator_of,
    column_accumulator,
    column_final,
    column_take,
    places,
    split_means,
)
from flambeau_inductor.codegen.cpp.row_shares import ROWS, accumulate_in_memory, share_loop
from flambeau_inductor.codegen.cpp.row_values import row_values
from flambeau_inductor.codegen.cpp.scan_loops import scan_loops, write_scan_loop
from flambeau_inductor.codegen.cpp.segments import Segment, segments_of, ways_along
from flambeau_inductor.codegen.cpp.short_groups import join_groups, widen_short_groups
from flambeau_inductor.codegen.cpp.short_rows import unroll_short_rows
from flambeau_inductor.codegen.cpp.sorts import declare_rows, sort_rows
from flambeau_inductor.codegen.cpp.streaming_stores import declare_streams, streamed_buffers
from flambeau_inductor.codegen.cpp.tiles import fetch_rows, tile_shape
from flambeau_inductor.codegen.cpp.unroll_and_jam import unroll_and_jam, write_jammed
from flambeau_inductor.codegen.cpp.writer import LoopWriter
from flambeau_inductor.indexing.expressions import FloorDiv, free_names, symbol, sympify
from flambeau_inductor.ir import Axis, CheckIndex, Load, Reduce, Scan, Store, scan_direction
from flambeau_inductor.scheduler.phases import split_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flambeau_inductor.codegen.cpp.plan import Plan
    from flambeau_inductor.codegen.cpp.reductions import Accumulator
    from flambeau_inductor.ir import Body, LoopKernel, Statement
    from flambeau_inductor.scheduler.phases import Phase

KEEP_COST = 10
"""Inner values dearer than this are kept in scratch memory, not recomputed in later loops."""

KEEP_ROW = 65536
"""Longer rows are not kept: they would leave the second-level cache before they are read again."""

STACK_ROW = 4096
"""Rows up to this length are kept on the C stack."""

FLUSH = 32
"""Float parts of columns are added to their double totals after so many values."""

MAX_THREADS = 256


def write_kernel(kernel: LoopKernel, name: str, threads: int = 0) -> str:
    """The C++ text of a kernel, without prelude; `threads`: 0 for as many as OpenMP has."""
    return KernelWriter(kernel, name, threads).write()


class KernelWriter(LoopWriter):
    """Writes one kernel."""

    def __init__(self, kernel: LoopKernel, name: str, threads: int) -> None:
        kernel, self.group = widen_short_groups(accumulate_in_memory(unroll_short_rows(kernel)))
        super().__init__(kernel)
        self.threads = threads
        self.name = name
        self.plan = choose_plan(kernel)
        assert self.group == 1 or self.plan.kind == "columns", kernel
        self.streamed = streamed_buffers(kernel, self.plan)
        vector = self.plan.vector
        self.ordered = self.plan.serial and vector is not None and is_ordered(kernel.body, vector)
        self.block_width = column_block(kernel, vector) if vector is not None else 0
        self.keep_rows = False
        if vector is not None:
            self.printer.gathered = gathered_float16(self.kernel.body, vector)

    # The kernel

    def write(self) -> str:
        """The part function and the entry."""
        kind = self.plan.kind
        self.part_head()
        self.depth += 1
        self.declarations()
        declare_streams(self)
        if static_product((*self.kernel.outer,)) != 0:
            _WRITERS[kind](self)
            if self.streamed:
                self.line("end_streams();")
        if self.checked:
            self.line("return bad;")
        self.depth -= 1
        self.line("}")
        (self.write_whole_entry if kind == "whole" else self.write_entry)()
        return "\n".join(self.text) + "\n"

    @property
    def result(self) -> str:
        """The C type of the result: a status if indices are checked."""
        return "int64_t" if self.checked else "void"

    def part_head(self) -> None:
        """The head of the function that does a share of the work, units `begin` to `end`."""
        if self.plan.kind == "whole":
            self.partial_struct()
            extra = f", int64_t thread, int64_t threads, {self.name}_partial *shared"
        else:
            extra = ""
        arguments = "void *const *buffers, const int64_t *ints, int64_t begin, int64_t end"
        self.line(f"static {self.result} {self.name}_part({arguments}{extra}) {{")

    # Pointwise

    def write_pointwise(self) -> None:
        """Rows of the lead axes, each a vector loop with its invariants before it."""
        vector = self.plan.vector
        if vector is None:
            self.statements(self.kernel.body)
            return
        if not self.plan.lead:
            self.vector_body(vector, "begin", "end", self.kernel.body)
            return
        if self.plan.tile is not None:
            self.write_tiles(vector, self.plan.tile)
            return
        self.compute_row_values(vector)
        body, outer = self.kernel.body, self.plan.lead[-1]
        jammed = unroll_and_jam(self, body, vector, outer)
        with self.lead_loops(self.plan.lead):
            if jammed is not None:
                count = "p" if len(self.plan.lead) > 1 else outer.symbol.name
                write_jammed(self, jammed, body, vector, outer, count, "end")
            fetch_gathered_rows(self, vector, outer)
            with self.block("if (!jammed_here)") if jammed is not None else nullcontext():
                self.vector_body(vector, "0", self.size(vector), body)

    def compute_row_values(self, vector: Axis) -> None:
        """Compute what is the same in all rows before them."""
        values = row_values(self.kernel, self.plan)
        if values is None:
            return
        checks = any(isinstance(s, CheckIndex) for s in values.moving)
        for name in values.names:
            ctype = "int32_t" if name in values.narrow else storage_type(self.dtypes[name])
            self.line(f"{ctype} {name}_row[{self.size(vector)}] __attribute__((aligned(64)));")
        with self.block(""):
            self.statements(values.fixed)
            self.simd(("bad", "|") if checks else None)
            with self.loop(vector.symbol.name, "0", self.size(vector)):
                self.statements(values.moving)
                for name in values.names:
                    self.line(f"{name}_row[{vector.symbol.name}] = {name};")
        if checks:
            self.line("if (bad) return bad;")
        kept = {s.value for s in values.rest if isinstance(s, CheckIndex)}
        self.checks = {name: check for name, check in self.checks.items() if name in kept}
        self.kernel = replace(self.kernel, body=values.rest)

    def tiled_lead(self) -> tuple[Axis, ...]:
        """The lead axes and the vector axis, counted in tiles: those along what is read follow one
        another.
        """
        vector, tile = self.plan.vector, self.plan.tile
        assert vector is not None and tile is not None
        rows, columns = tile_shape(self.kernel, self.plan)
        counted = [
            Axis(
                symbol(f"{axis.symbol.name}_tile"),
                FloorDiv(sympify(axis.size) + count - 1, sympify(count)),
            )
            for axis, count in ((vector, columns), (tile, rows))
        ]
        return (*(axis for axis in self.plan.lead if axis is not tile), *counted)

    def write_tiles(
        self,
        vector: Axis,
        tile: Axis,
        bounds: tuple[str, str] = ("begin", "end"),
        count: str = "p",
    ) -> None:
        """Tiles of the vector axis and a lead axis: loads contiguous along it are transposed."""
        name, lead = vector.symbol.name, tile.symbol.name
        rows, columns = tile_shape(self.kernel, self.plan)
        staged = [s for s in self.kernel.body if self.is_staged(s, vector, tile)]
        with self.lead_loops(self.tiled_lead(), bounds, count):
            for begin, end, axis, length in (
                ("first", "last", tile, rows),
                ("part", "stop", vector, columns),
            ):
                size, static = self.size(axis), static_product((axis,))
                stop = f"{begin} + {length}"
                self.line(f"const int64_t {begin} = {axis.symbol.name}_tile * {length};")
                if static is None or static % length:
                    stop = f"{stop} < {size} ? {stop} : {size}"
                self.line(f"const int64_t {end} = {stop};")
            for load in staged:
                self.line(
                    f"{storage_type(load.dtype)} {load.name}_tile[{rows}][{columns}] "
                    "__attribute__((aligned(64)));"
                )
            with self.block(""):
                self.line(f"const int64_t {lead} = first, {name} = part;")
                for load in staged:
                    stride = self.printer.index_text(stride_along(load.index, vector) or 0)
                    place = f"{load.buffer} + {self.printer.index_text(load.index)}"
                    self.line(
                        f"stage_tile({place}, {stride}, last - first, stop - part, {rows}, "
                        f"{load.name}_tile);"
                    )
            self.staged = {
                load.name: f"{load.name}_tile[{lead} - first][{name} - part]" for load in staged
            }
            # The loops of whole tiles, of a length that is known, are unrolled.
            whole = f"part + {columns}"
            self.whole_row = ("part", whole)
            ways = [(f"if (stop == {whole})", whole), ("else", "stop")]
            static = static_product((vector,))
            if static is not None and static % columns == 0:
                ways = [("", whole)]
            for head, stop in ways:
                with self.block(head), self.loop(lead, "first", "last"):
                    fetch_rows(self, vector, tile, rows, stop)
                    self.vector_body(vector, "part", stop, self.kernel.body)

    def is_staged(self, statement: Statement, vector: Axis, tile: Axis) -> TypeGuard[Load]:
        """Whether a load goes through a tile: it is transposed and its address is known before."""
        if not is_transposed(statement, vector, tile):
            return False
        return statement.mask is None and free_names(statement.index).isdisjoint(self.dtypes)

    def vector_body(self, vector: Axis, begin: str, end: str, body: Body) -> None:
        """Statements invariant along the vector axis, then the vector loop, peeled for masks."""
        moving = dependents(body, {vector.symbol.name})
        before = [s for s in body if not varies(s, moving) and not isinstance(s, Store)]
        stores = [
            s for s in body if isinstance(s, Store) and not varies(s, moving) and not is_scatter(s)
        ]
        self.statements(before)
        known = {s.name for s in before if not isinstance(s, CheckIndex)}
        rest = tuple(s for s in body if s not in stores)
        ways = [("", rest)] if self.checked else ways_along(rest, vector, self.plan.lead)
        word = "if"
        for condition, way in ways:
            head = f"{word} ({condition})" if condition else "else"
            with self.block(head) if len(ways) > 1 else nullcontext():
                self.segment_loops(vector, begin, end, way, before, known)
            word = "else if"
        self.statements(stores)

    def segment_loops(
        self,
        vector: Axis,
        begin: str,
        end: str,
        body: Body,
        before: Sequence[Statement],
        known: set[str],
    ) -> None:
        """The vector loop in segments, peeled for masks, behind what was written `before`."""
        segments = None if self.checked else segments_of(self, body, vector, begin, end)
        if segments is None:
            segments = [Segment(begin, end, body)]
        for part in segments:
            peeled = None if self.checked else peel(part.body, vector)
            if peeled is not None:
                write_peeled(self, peeled, vector, part.low, part.high, known)
            elif any(isinstance(s, (Store, CheckIndex)) for s in part.body):
                # Where conditions are known, a value may vary no more: then it is written before.
                loop = tuple(s for s in part.body if s not in before)
                write_vector_loop(self, vector, part.low, part.high, loop, known)

    @contextmanager
    def lead_loops(
        self, lead: Sequence[Axis], bounds: tuple[str, str] = ("begin", "end"), count: str = "p"
    ) -> Iterator[None]:
        """Within the bounds over the points of the lead axes, counted as an odometer counts, by the
        variable `count`.
        """
        if not lead:
            yield
            return
        if len(lead) == 1:
            with self.loop(lead[0].symbol.name, *bounds):
                yield
            return
        rest = "rest" if count == "p" else f"{count}_rest"
        self.line(f"int64_t {rest} = {bounds[0]};")
        for axis in reversed(lead[1:]):
            size = self.size(axis)
            self.line(f"int64_t {axis.symbol.name} = {rest} % {size}; {rest} /= {size};")
        self.line(f"int64_t {lead[0].symbol.name} = {rest};")
        with self.loop(count, *bounds):
            yield
            for axis in reversed(lead[1:]):
                name = axis.symbol.name
                self.line(f"if (++{name} < {self.size(axis)}) continue;")
                self.line(f"{name} = 0;")
            self.line(f"++{lead[0].symbol.name};")

    # Rows

    def write_rows(self) -> None:
        """Phase after phase at each outer point."""
        row = static_product(self.kernel.inner)
        self.keep_rows = row is None or row <= KEEP_ROW
        self.phases = split_phases(self.kernel, KEEP_COST if self.keep_rows else None, defers=True)
        kept = self.declare_scratch(row)
        declare_rows(self, self.phases)
        shared = self.plan.kind == "shares"
        shares = share_loop(self) if shared else nullcontext()
        with shares, self.lead_loops(self.plan.lead, ROWS if shared else ("begin", "end")):
            for phase in self.phases:
                self.write_row_phase(phase, "0", self.size(self.kernel.inner[0]))
        if row is None or row > STACK_ROW:
            for name in kept:
                self.line(f"__builtin_free(keep_{name});")

    def declare_scratch(self, row: int | None) -> list[str]:
        """A row of memory for each kept value."""
        kept = [name for phase in self.phases for name in phase.keeps]
        for name in kept:
            ctype = storage_type(self.dtypes[name])
            if row is not None and row <= STACK_ROW:
                self.line(f"{ctype} keep_{name}[{max(row, 1)}] __attribute__((aligned(64)));")
            else:
                count = self.product(self.kernel.inner)
                self.line(
                    f"{ctype} *__restrict keep_{name} = ({ctype} "
                    f"*)__builtin_malloc({count} * sizeof({ctype}));"
                )
        return kept

    def write_row_phase(self, phase: Phase, first_begin: str, first_end: str) -> None:
        """Row statements, then loops over the inner axes, the first in the given range."""
        self.statements(
            s for s in phase.row if not isinstance(s, Store) or self.plan.kind != "whole"
        )
        self.row_stores(phase)
        with deferred_row(self, phase):
            self.write_row_loops(phase, first_begin, first_end)

    def write_row_loops(self, phase: Phase, first_begin: str, first_end: str) -> None:
        """A phase's loops over the inner axes, and their results."""
        reduces, means = split_means(phase.reduces)
        phase = replace(phase, reduces=reduces)
        accumulators = {
            reduce.name: accumulator_of(reduce, self.dtypes[reduce.value]) for reduce in reduces
        }
        for name, each in accumulators.items():
            for ctype, suffix, start in each.state:
                self.line(f"{ctype} {name}_all{suffix} = {start};")
        if scan_direction(phase.inner) is not None:
            write_scan_loop(self, phase, accumulators)
        elif phase.inner or phase.reduces or phase.sorts:
            self.inner_loops(phase, accumulators, first_begin, first_end)
        sort_rows(self, phase)
        if self.plan.kind == "whole":
            self.combine_threads(phase, accumulators)
        for reduce in (*reduces, *means):
            accumulator = accumulator_of(reduce, self.dtypes[reduce.value])
            whole = places("s", f"{means.get(reduce, reduce.name)}_all")
            final = accumulator.final.format(**whole)
            self.line(f"const {value_type(reduce.dtype)} {reduce.name} = {final};")
            self.replay.values[reduce.name] = reduce.name
            self.replay.dtypes[reduce.name] = reduce.dtype

    def row_stores(self, phase: Phase) -> None:
        """In a whole reduction, thread 0 stores what belongs to the single outer point."""
        stores = [s for s in phase.row if isinstance(s, Store)] if self.plan.kind == "whole" else []
        if stores:
            self.line("if (threads > 1) {")
            self.line("  #pragma omp barrier")
            self.line("}")
            with self.block("if (thread == 0)"):
                self.statements(stores)

    def inner_loops(
        self, phase: Phase, accumulators: dict[str, Accumulator], begin: str, end: str
    ) -> None:
        """The nest over the inner axes; the last one is the vector loop."""
        tiled = transposed(self.kernel, phase) if self.plan.kind == "rows" else None
        if tiled is not None:
            self.write_transposed(*tiled)
            return
        nest = nest_of(self.kernel, phase)
        first, self.row_axis = self.kernel.inner[0], nest.row
        rest = self.product((*nest.merged[1:], nest.row))
        with ExitStack() as opened:
            if nest.merged:
                opened.enter_context(self.block(""))
            for axis in nest.outer:
                bounds = (begin, end) if axis is first else ("0", self.size(axis))
                opened.enter_context(self.loop(axis.symbol.name, *bounds))
            if nest.merged and nest.merged[0] is first and (begin, end) != ("0", self.size(first)):
                bounds = "row_begin", "row_end"
                for bound, place in zip(bounds, (begin, end), strict=True):
                    self.line(f"const int64_t {bound} = {place} * {rest};")
            elif nest.row is first:
                bounds = begin, end
            else:
                bounds = "0", self.product((*nest.merged, nest.row))
            for axis in nest.merged:
                self.line(f"const int64_t {axis.symbol.name} = 0;")
            write_accumulation_loop(self, phase, accumulators, *bounds)

    def write_transposed(self, kernel: LoopKernel, plan: Plan) -> None:
        """A phase in tiles over the inner axes."""
        before = self.kernel, self.plan
        self.kernel, self.plan = kernel, plan
        assert plan.vector is not None and plan.tile is not None
        with self.block(""):
            bounds = "0", self.product(self.tiled_lead())
            self.write_tiles(plan.vector, plan.tile, bounds, "q")
        (self.kernel, self.plan), self.staged, self.whole_row = before, {}, None

    # Whole

    def partial_struct(self) -> None:
        """A thread's part of each reduction, for the others to read."""
        fields = []
        for statement in self.kernel.body:
            if isinstance(statement, Reduce):
                accumulator = accumulator_of(statement, self.dtypes[statement.value])
                fields += [
                    f"{ctype} {statement.name}{suffix};" for ctype, suffix, _ in accumulator.state
                ]
        self.line(
            f"struct {self.name}_partial {{ {' '.join(fields)} }} __attribute__((aligned(64)));"
        )

    def write_whole(self) -> None:
        """Each thread reduces a chunk of the first inner axis; all join the parts in one order."""
        self.phases = split_phases(self.kernel, None, defers=True)
        for phase in self.phases:
            self.write_row_phase(phase, "begin", "end")

    def combine_threads(self, phase: Phase, accumulators: dict[str, Accumulator]) -> None:
        """Join the threads' accumulators of a phase, in the order of the threads."""
        if not accumulators:
            return
        with self.block("if (threads > 1)"):
            for name, accumulator in accumulators.items():
                for _, suffix, _ in accumulator.state:
                    self.line(f"shared[thread].{name}{suffix} = {name}_all{suffix};")
            self.line("#pragma omp barrier")
            for name, accumulator in accumulators.items():
                for _, suffix, start in accumulator.state:
                    self.line(f"{name}_all{suffix} = {start};")
            with self.loop("t", "0", "threads"):
                for name, accumulator in accumulators.items():
                    both = places("s", f"{name}_all") | places("q", f"shared[t].{name}")
                    for text in accumulator.merge:
                        self.line(text.format(**both))

    # Columns

    def write_columns(self) -> None:
        """Blocks of the vector axis: arrays hold accumulators and row values of a block's columns.

        Threads share out units of a few columns; each takes its own in blocks as wide as they come.
        """
        vector = self.plan.vector
        assert vector is not None
        self.phases = split_phases(self.kernel, None, defers=True)
        name, size = vector.symbol.name, self.size(vector)
        self.line(f"const int64_t units = ({size} + {COLUMN_UNIT - 1}) / {COLUMN_UNIT};")
        with self.block("for (int64_t unit = begin, taken; unit < end; unit += taken)"):
            self.line(f"const int64_t first = unit % units * {COLUMN_UNIT};")
            self.line(
                "taken = end - unit < units - unit % units ? end - unit : units - unit % units;"
            )
            widest = self.block_width // COLUMN_UNIT
            self.line(f"if (taken > {widest}) taken = {widest};")
            self.line(
                f"const int64_t most = taken * {COLUMN_UNIT}, count = {size} - first < "
                f"most ? {size} - first : most;"
            )
            self.line("int64_t rest = unit / units;")
            for axis in reversed(self.plan.lead):
                length = self.size(axis)
                self.line(f"const int64_t {axis.symbol.name} = rest % {length}; rest /= {length};")
            # Accumulators are arrays, one element a column, even where all columns reduce the same
            # values.
            moving = dependents(
                self.kernel.body,
                {name, *(s.name for s in self.kernel.body if isinstance(s, (Reduce, Scan)))},
            )
            arrays: set[str] = set()
            for number, phase in enumerate(self.phases):
                self.write_column_phase(phase, self.phases[number + 1 :], moving, arrays)

    @contextmanager
    def column_loop(self, *clauses: tuple[str, str] | None) -> Iterator[None]:
        """The vector loop over a block of columns."""
        vector = self.plan.vector
        assert vector is not None
        self.simd(*clauses)
        with self.loop("c", "0", "count"):
            self.line(f"const int64_t {vector.symbol.name} = first + c;")
            yield

    def load_arrays(
        self, statements: Sequence[Statement], arrays: set[str], extra: Iterable[str] = ()
    ) -> None:
        """The column's values of what earlier loops left in arrays and these statements read."""
        wanted = set(extra)
        for statement in statements:
            wanted |= {name for name in arrays if varies(statement, {name})}
        for name in sorted(wanted & arrays):
            self.line(f"const {value_type(self.dtypes[name])} {name} = {name}_column[c];")

    def write_column_phase(
        self, phase: Phase, later: Sequence[Phase], moving: set[str], arrays: set[str]
    ) -> None:
        """One phase of a reduction that goes through columns side by side."""
        self.column_rows(phase, later, moving, arrays)
        if phase.inner or phase.reduces:
            with deferred_columns(self, self, phase, arrays):
                self.write_column_loops(phase, moving, arrays)

    def write_column_loops(self, phase: Phase, moving: set[str], arrays: set[str]) -> None:
        """A phase's loops over the inner axes, and their results."""
        row = static_product(self.kernel.inner)
        short = self.kernel.narrow or (row is not None and row < 1 << 31)
        reduces, means = split_means(phase.reduces)
        phase = replace(phase, reduces=reduces)
        accumulators = {
            reduce.name: column_accumulator(reduce, self.dtypes[reduce.value], short)
            for reduce in reduces
        }
        every = f"for (int64_t c = 0; c < {self.block_width}; ++c)"
        for name, accumulator in accumulators.items():
            for ctype, suffix, start in accumulator.state:
                self.line(f"{ctype} {name}_all{suffix}[{self.block_width}];")
                self.line(f"{every} {name}_all{suffix}[c] = {start};")
            if accumulator.bounded:
                (ctype, _, start) = accumulator.part[0]
                self.line(f"{ctype} {name}_part[{self.block_width}] = {{}};")
                if start[0] != "0":
                    self.line(f"{every} {name}_part[c] = {start};")
        bounded = {
            name: accumulator for name, accumulator in accumulators.items() if accumulator.bounded
        }
        count = f"reduced_{next(iter(bounded), '')}"
        if bounded:
            self.line(f"int64_t {count} = 0;")
        with scan_loops(self, phase.inner, self.kernel.inner, self.block_width):
            self.column_body(phase, accumulators, moving, arrays)
            if bounded:
                with self.block(f"if (++{count} == {FLUSH})"):
                    self.line(f"{count} = 0;")
                    self.flush_columns(bounded)
        if bounded:
            self.flush_columns(bounded)
        if self.group > 1 and accumulators:
            join_groups(self, accumulators, self.group)
        self.finish_columns(phase, accumulators, arrays)
        for reduce, other in means.items():
            accumulator = column_accumulator(reduce, self.dtypes[reduce.value], short)
            self.finish_column(reduce, accumulator, f"{other}_all", arrays)

    def column_rows(
        self, phase: Phase, later: Sequence[Phase], moving: set[str], arrays: set[str]
    ) -> None:
        """The row statements of a phase: those of the whole block, then those of each column."""
        self.statements(s for s in phase.row if not varies(s, moving))
        rows = [s for s in phase.row if varies(s, moving)]
        if not rows:
            return
        used_later = (
            [s for p in (phase, *later) for s in p.inner]
            + [s for p in later for s in p.row]
            + [s for p in (phase, *later) for d in p.deferrals for s in d.body]
        )
        kept = [
            s.name
            for s in rows
            if not isinstance(s, (Store, CheckIndex))
            and any(varies(other, {s.name}) for other in used_later)
        ]
        kept += [
            r.value
            for p in (phase, *later)
            for r in p.reduces
            if r.value in {getattr(s, "name", None) for s in rows}
        ]
        for name in dict.fromkeys(kept):
            self.line(f"{value_type(self.dtypes[name])} {name}_column[{self.block_width}];")
        checks = ("bad", "|") if any(isinstance(s, CheckIndex) for s in rows) else None
        with self.column_loop(checks):
            self.load_arrays(rows, arrays)
            self.statements(rows)
            for name in dict.fromkeys(kept):
                self.line(f"{name}_column[c] = {name};")
        arrays.update(kept)

    def column_body(
        self, phase: Phase, accumulators: dict[str, Accumulator], moving: set[str], arrays: set[str]
    ) -> None:
        """The statements of one step of a reduction, for each column of a block."""
        inside = [s for s in phase.inner if isinstance(s, Scan) or varies(s, moving)]
        self.statements(s for s in phase.inner if s not in inside)
        self.printer.carry_index = "[c]"
        vector = self.plan.vector
        assert vector is not None
        rows = on_rows(inside, vector, begin="first", outside=self.dtypes)
        if rows is not None:
            declare_float_rows(self, rows, self.block_width)
            widen_rows(self, rows, vector, "first", "count")
            inside = list(rows.body)
        with self.column_loop(
            ("bad", "|") if any(isinstance(s, CheckIndex) for s in inside) else None
        ):
            self.load_arrays(inside, arrays, (reduce.value for reduce in phase.reduces))
            self.statements(inside)
            for reduce in phase.reduces:
                accumulator, dtype = accumulators[reduce.name], self.dtypes[reduce.value]
                whole = places("s", f"{reduce.name}_all", "[c]")
                part = f"{reduce.name}_part" if accumulator.bounded else f"{reduce.name}_all"
                whole |= places("q", part, "[c]")
                for text in column_take(accumulator, reduce, dtype):
                    self.line(text.format(**whole, v=reduce.value, at=self.position()))
        if rows is not None:
            narrow_rows(self, rows, vector, "first", "count")

    def flush_columns(self, bounded: dict[str, Accumulator]) -> None:
        """Join the parts of accumulators that hold a bounded number of elements."""
        with self.loop("c", "0", "count"):
            for name, accumulator in bounded.items():
                both = places("s", f"{name}_all", "[c]") | places("q", f"{name}_part", "[c]")
                for text in accumulator.join:
                    self.line(text.format(**both))
                self.line(f"{name}_part[c] = {accumulator.part[0][2]};")

    def finish_columns(
        self, phase: Phase, accumulators: dict[str, Accumulator], arrays: set[str]
    ) -> None:
        """Store a phase's results in one array of columns each."""
        for reduce in phase.reduces:
            self.finish_column(reduce, accumulators[reduce.name], f"{reduce.name}_all", arrays)

    def finish_column(
        self, reduce: Reduce, accumulator: Accumulator, name: str, arrays: set[str]
    ) -> None:
        """Store a Reduce's results, from accumulators of this name."""
        final = column_final(accumulator).format(**places("s", name, "[c]"))
        self.line(f"{value_type(reduce.dtype)} {reduce.name}_column[{self.block_width}];")
        self.line(f"for (int64_t c = 0; c < count; ++c) {reduce.name}_column[c] = {final};")
        self.replay.values[reduce.name] = reduce.name
        self.replay.dtypes[reduce.name] = reduce.dtype
        arrays.add(reduce.name)

    # The entry

    def write_entry(self) -> None:
        """Runs the part function on all of the work, or a share in each thread if it is enough."""
        plan = self.plan
        keyword = "return " if self.checked else ""
        call = f"{self.name}_part(buffers, ints"
        with self.block(
            f"EXPORT {self.result} {self.name}(void *const *buffers, const int64_t *ints)"
        ):
            self.size_declarations()
            n, step = self.work_units()
            self.line(f"const int64_t n = {n};")
            if not plan.may_be_parallel or self.threads == 1:
                self.line(f"{keyword}{call}, 0, n);")
                return
            if plan.static_work is None:
                total = self.product((*self.kernel.outer, *self.kernel.inner))
                with self.block(f"if ({total} < {PARALLEL_WORK // plan.point_cost})"):
                    self.line(f"{keyword}{call}, 0, n);")
                    if not self.checked:
                        self.line("return;")
            reduction = " reduction(|:bad)" if self.checked else ""
            if self.checked:
                self.line("int64_t bad = 0;")
            limit = f" num_threads({self.threads})" if self.threads else ""
            self.line(f"#pragma omp parallel{limit}{reduction}")
            with self.block(""):
                self.line("const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();")
                status = "bad = " if self.checked else ""
                self.line(
                    f"{status}{call}, share(n, t, count, {step}), share(n, t + 1, count, {step}));"
                )
            if self.checked:
                self.line("return bad;")

    def work_units(self) -> tuple[str, int]:
        """The number of units that the part function counts, and a thread's step."""
        plan = self.plan
        if plan.kind == "shares":
            return self.printer.index_text(self.kernel.shares), 1
        if plan.kind == "pointwise" and not plan.lead:
            return ("1", 1) if plan.vector is None else (self.product((plan.vector,)), 64)
        lead = plan.lead if plan.tile is None else self.tiled_lead()
        units = self.product(lead) if lead else "1"
        if plan.kind == "columns":
            assert plan.vector is not None
            return (
                f"(({self.size(plan.vector)} + {COLUMN_UNIT - 1}) / {COLUMN_UNIT}) * ({units})",
                1,
            )
        return units, 1

    def write_whole_entry(self) -> None:
        """Threads share the first inner axis; with little work one thread does it all."""
        keyword = "return " if self.checked else ""
        call = f"{self.name}_part(buffers, ints"
        step = 64 if len(self.kernel.inner) == 1 else 1
        with self.block(
            f"EXPORT {self.result} {self.name}(void *const *buffers, const int64_t *ints)"
        ):
            self.size_declarations()
            self.line(f"const int64_t n = {self.size(self.kernel.inner[0])};")
            if self.plan.static_work is None:
                total = self.product(self.kernel.inner)
                with self.block(f"if ({total} < {PARALLEL_WORK // self.plan.point_cost})"):
                    self.line(f"{keyword}{call}, 0, n, 0, 1, 0);")
                    if not self.checked:
                        self.line("return;")
            self.line(f"{self.name}_partial shared[{MAX_THREADS}];")
            if self.checked:
                self.line("int64_t bad = 0;")
            limit = min(self.threads or MAX_THREADS, MAX_THREADS)
            self.line(
                f"const int most = omp_get_max_threads() < {limit} ? omp_get_max_threads() "
                f": {limit};"
            )
            self.line(
                f"#pragma omp parallel "
                f"num_threads(most){' reduction(|:bad)' if self.checked else ''}"
            )
            with self.block(""):
                self.line("const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();")
                status = "bad = " if self.checked else ""
                shares = f"share(n, t, count, {step}), share(n, t + 1, count, {step})"
                self.line(f"{status}{call}, {shares}, t, count, shared);")
            if self.checked:
                self.line("return bad;")


_WRITERS: dict[str, Callable[[KernelWriter], None]] = {
    "pointwise": KernelWriter.write_pointwise,
    "rows": KernelWriter.write_rows,
    "shares": KernelWriter.write_rows,
    "columns": KernelWriter.write_columns,
    "whole": KernelWriter.write_whole,
}
"""The loops of a kernel by the kind of its plan."""
