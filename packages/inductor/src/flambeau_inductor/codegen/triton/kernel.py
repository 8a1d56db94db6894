"""One kernel of the loop IR as one Triton function.

Four shapes, chosen in `tiling.choose_tiling`:

- pointwise: a program takes XBLOCK points of the flattened outer axes;
- pointwise in two dimensions (a transposition; what is repeated along some axes): XBLOCK points of
  some outer axes, RBLOCK points of the others;
- persistent reduction: XBLOCK rows, the whole row in RBLOCK lanes; each value is computed once and
  stays in registers;
- looped reduction: XBLOCK rows, one loop over the row in steps of RBLOCK for each of
  `split_phases`' phases.

Rows that are scanned or sorted have the forms of reductions; a sorted row is persistent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.half_results import only_for_halves
from flambeau_inductor.codegen.triton import reductions
from flambeau_inductor.codegen.triton.filled_loads import filled_loads
from flambeau_inductor.codegen.triton.first_sorted import first_count, write_first_sorted
from flambeau_inductor.codegen.triton.ops import POINTER_TYPES, TRITON_TYPES, TritonOps
from flambeau_inductor.codegen.triton.rounded_products import factors
from flambeau_inductor.codegen.triton.row_shares import take, write_shares
from flambeau_inductor.codegen.triton.row_tiles import write_row_tiles
from flambeau_inductor.codegen.triton.source_writer import SourceWriter
from flambeau_inductor.codegen.triton.tiling import (
    apart_axes,
    constants_of,
    lane_axes,
    row_axes,
    row_major,
)
from flambeau_inductor.codegen.triton.vector_bounds import VectorBound, vector_bounds
from flambeau_inductor.codegen.triton.vector_rows import (
    flat_masks,
    flat_vector,
    touched,
    vector_rows,
    wider_vectors,
)
from flambeau_inductor.indexing.expressions import evaluate_expr, free_names, integer_text
from flambeau_inductor.ir import (
    SHARE,
    TILE,
    CheckIndex,
    Compute,
    Constant,
    IndexValue,
    Load,
    Scan,
    defined_name,
    index_of,
    inner_names,
    operands,
    scan_direction,
    tile_points,
)
from flambeau_inductor.scalar_ops import Replay
from flambeau_inductor.scheduler.phases import split_phases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.triton.tiling import Tiling
    from flambeau_inductor.ir import (
        Axis,
        Body,
        ColumnReduce,
        Integer,
        LoopKernel,
        Reduce,
        Statement,
    )

HEADER = (
    "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
)


EARLY_REGISTERS = 64
"""Registers of a thread that may wait for loads at the beginning of a persistent reduction."""


def write_kernel(kernel: LoopKernel, name: str, tiling: Tiling, *, strict: bool = False) -> str:
    """The source text of a kernel: imports, the helpers it needs, the function. `strict`: no value
    is computed less exactly because rounding hides it.
    """
    return KernelWriter(kernel, name, tiling, strict=strict).source()


def signature(kernel: LoopKernel) -> dict[str, str]:
    """Triton's type of each run-time argument, in order."""
    pointers = {param.name: POINTER_TYPES[param.dtype] for param in kernel.params}
    return pointers | {size.name: "i64" for size in kernel.sizes}


def needs_debug(kernel: LoopKernel) -> bool:
    """Whether the kernel checks indices: Triton compiles its assertions only when asked to."""
    return any(isinstance(statement, CheckIndex) for statement in kernel.body)


def _rounded_quotients(body: Body) -> set[tuple[str, ...]]:
    """What is divided by what, where all results reach memory in half precision only."""
    rounded = only_for_halves(body)
    quotients = [s for s in body if isinstance(s, Compute) and s.op == "div"]
    return {s.args for s in quotients} - {s.args for s in quotients if s.name not in rounded}


class KernelWriter(SourceWriter):
    """Writes one function; `TritonOps` calls back for masks, pointers, stores and reductions."""

    def __init__(
        self,
        kernel: LoopKernel,
        name: str,
        tiling: Tiling,
        programs: tuple[str, ...] = (),
        *,
        strict: bool = False,
    ) -> None:
        super().__init__({param.name: param.dtype for param in kernel.params})
        self.kernel = kernel
        self.name = name
        self.tiling = tiling
        self.programs = programs
        """The arguments that say which program this is; none: what Triton says."""
        self.size_names = {symbol.name for symbol in kernel.sizes}
        self.rows = row_axes(kernel, tiling)
        self.lane_axes = lane_axes(kernel, tiling)
        self.inner = inner_names(kernel.body, self.lane_axes)
        apart = {axis.symbol.name for axis in apart_axes(kernel, tiling)}
        if kernel.shares != 0:
            # Masks of rows are not known outside of the loop over them.
            apart |= {axis.symbol.name for axis in self.lane_axes}
        self.tiled = _not_constant(kernel.body, apart | self.size_names | {SHARE.name})
        self.outer_points = product_of(self.rows)
        self.inner_points = product_of(self.lane_axes)
        self.places = _names_of_places(kernel)
        self.wide = self.needs_64_bits()
        self.indirect = indirect_names(kernel)
        # A tile that divides its axis has no lanes outside: unmasked accesses are wide ones.
        shares = kernel.shares if kernel.shares != 0 else 1
        self.rows_fit = divides(tiling.xblock * shares, self.outer_points)
        self.lanes_fit = bool(self.lane_axes) and divides(tiling.rblock, self.inner_points)
        self.vectors = vector_rows(kernel) if tiling.vectors else None
        if self.vectors is not None:
            self.lanes_fit = False
        self.flat_index = self.row_major_index()
        odd = tiling.vectors and not self.rows_fit
        self.flat_vector = flat_vector(kernel, self.flat_index) if odd else 0
        one = tiling.vectors and len(tiling.lanes) == 1
        self.bounds = vector_bounds(kernel, *tiling.lanes) if one else {}
        self.bound_masks: set[str] = set()
        self.filled_loads = filled_loads(kernel)
        self.scalar_rows = bool(tiling.lanes) and tiling.xblock == 1
        self.constants = {s.name: float(s.value) for s in kernel.body if isinstance(s, Constant)}
        self.rounded_products = set() if strict else factors(kernel)
        self.rounded_quotients = set() if strict else _rounded_quotients(kernel.body)
        self.reduced = 0
        self.reductions: dict[tuple[str, str], str] = {}
        self.orders: dict[tuple[str, bool], str] = {}
        self.carried = False
        self.sorted_lanes: tuple[int, int] | None = None
        """How many elements a sort gives, if not all, and in how many lanes."""
        self.lane_block = "RBLOCK"
        self.row_part: int | None = None
        """The tile that is written, where several make up a row."""

    # What TritonOps asks

    @property
    def scalar_shape(self) -> str:
        """The shape of a tile of one value."""
        return "[1, 1]" if self.lane_axes else "[1]"

    @property
    def sides(self) -> tuple[str, str]:
        """How rows and lanes become the dimensions of a tile. Where no access is contiguous to
        Triton, neighbouring threads walk the first dimension.
        """
        return ("[None, :]", "[:, None]") if self.tiling.dealt else ("[:, None]", "[None, :]")

    def tile_shape(self, inner: bool) -> str:
        """The shape of a tile of stored values."""
        lanes = self.lane_block if inner else "1"
        return f"[{lanes}, XBLOCK]" if self.tiling.dealt else f"[XBLOCK, {lanes}]"

    def divides_row(self, a: str, b: str) -> bool:
        """Whether one value of a program divides a whole row."""
        alone = bool(self.kernel.inner) and self.tiling.xblock == 1
        return alone and a in self.inner and b not in self.inner

    def rounds_quotient(self, a: str, b: str) -> bool:
        """Whether what one value divides another to reaches memory in half precision only."""
        return (a.removesuffix(self.part_suffix), b) in self.rounded_quotients

    def rounds_product(self, a: str, b: str) -> bool:
        """Whether a product is rounded before a sum reads it."""
        suffix = self.part_suffix
        return (a.removesuffix(suffix), b.removesuffix(suffix)) in self.rounded_products

    def masks(self, index: sympy.Expr, dtype: torch.dtype) -> list[str]:
        """The tile masks a load needs: over rows if rows vary, over lanes if lanes do."""
        names = {symbol.name for symbol in index.free_symbols}
        masks = ["xmask"] if names & self.tiled and not self.rows_fit else []
        if self.vectors is not None and self.vectors.holds(index):
            return [*masks, touched("row_touched", dtype, self.vectors.vector)]
        if self.flat_vector and index == self.flat_index:
            return [touched("xtouched", dtype, self.flat_vector)]
        return masks + (["rmask"] if names & self.inner and not self.lanes_fit else [])

    def whole_vectors(self, mask: str, bound: VectorBound) -> str:
        """The mask of vectors that a mask of elements touches."""
        name, lines = bound.lines(mask)
        if name not in self.bound_masks:
            self.bound_masks.add(name)
            for line in lines:
                self.line(line)
        return name

    def value_masks(self, value: str) -> list[str]:
        """The tile masks of a value."""
        masks = [] if self.rows_fit else ["xmask"]
        return masks + (["rmask"] if value in self.inner and not self.lanes_fit else [])

    def pointer(self, buffer: str, index: sympy.Expr) -> str:
        """The tile of addresses of an access."""
        if not index.free_symbols - set(self.kernel.sizes):
            return f"{buffer} + tl.full({self.scalar_shape}, {integer_text(index)}, tl.int64)"
        return " + ".join([buffer, *(f"({part})" for part in self.index_parts(index))])

    def index_parts(self, index: sympy.Expr) -> list[str]:
        """An index in Triton, as texts to be added to an address one by one. The rows of a tile
        that a thread has, all of them, are constants apart from the first.
        """
        if not self.tiling.repeats or len(self.rows) != 1:
            return [self.index_text(index)]
        row = self.rows[0].symbol
        step = index.coeff(row)
        rest = sympy.expand(index - step * row)
        if not step.is_Integer or step == 0 or row in rest.free_symbols:
            return [self.index_text(index)]
        return [f"{self.index_text(rest)} + {step} * xfirst", f"{step} * xrow"]

    def scalar_pointer(self, buffer: str, index: sympy.Expr) -> str | None:
        """One address for a program within a row, if an index names nothing else: of a tile of one,
        each thread would load as many as of other tiles.
        """
        names = free_names(index)
        if not self.scalar_rows or not names <= {axis.symbol.name for axis in self.rows}:
            return None
        return f"{buffer} + ({integer_text(index, lambda name: f'{name}_scalar')})"

    def index_text(self, index: sympy.Expr) -> str:
        """An index in Triton: the sum of what varies along the rows, then what does along lanes."""
        if self.vectors is not None and self.vectors.holds(index):
            return "row_base + row_lane"
        flat = self.flat_index if len(self.rows) > 1 else None
        if flat is not None and all(index.coeff(s) == flat.coeff(s) for s in flat.free_symbols):
            # Triton sees that neighbours lie side by side in memory.
            rest = sympy.expand(index - flat)
            if rest.free_symbols.isdisjoint(flat.free_symbols):
                return f"xindex + ({integer_text(rest, self.index_name)})" if rest else "xindex"
        rows: list[sympy.Expr] = []
        lanes: list[sympy.Expr] = []
        for term in sympy.Add.make_args(index):
            (rows if free_names(term).isdisjoint(self.inner) else lanes).append(term)
        parts = [
            integer_text(sympy.Add(*terms), self.index_name) for terms in (rows, lanes) if terms
        ]
        return f"({parts[0]}) + ({parts[1]})" if len(parts) == 2 else parts[0]

    def row_major_index(self) -> sympy.Expr | None:
        """The flattened rows of a pointwise kernel, as an index over their axes."""
        return None if self.lane_axes or not self.rows else row_major(self.rows)

    def index_name(self, name: str) -> str:
        """A symbol of an index: an indirect one in 32 bits, if these hold all indices."""
        return f"{name}_index" if self.kernel.narrow and name in self.indirect else name

    def define(self, name: str, value: str) -> str:
        """A value, and the index that it is; returns the value's name in the function."""
        if self.row_part is not None and name in self.inner:
            name += self.part_suffix
            self.inner.add(name)
        self.line(f"{name} = {value}")
        if self.kernel.narrow and name in self.indirect:
            self.line(f"{name}_index = {name}.to(tl.int32)")
        return name

    @property
    def part_suffix(self) -> str:
        """What the names of a tile of several end with: no name of the kernel does."""
        return "" if self.row_part is None else f"_part{self.row_part}"

    def begin_tile(self, number: int) -> None:
        """What follows is about a tile of several that make up a row."""
        self.row_part, self.lanes_fit = number, self.tile_fits(number)
        self.lanes_from(str(number * self.tiling.rblock))

    def end_tiles(self) -> None:
        """What follows is about rows."""
        self.row_part = None

    def tile_fits(self, number: int) -> bool:
        """Whether a tile of several lies inside the row."""
        return (number + 1) * self.tiling.rblock <= self.inner_points

    def store(
        self, buffer: str, index: sympy.Expr, value: str, mode: str = "", mask: str | None = None
    ) -> None:
        """A masked store; one value for a whole row or tile is spread over it first. Every point of
        a scatter stores.
        """
        names = {symbol.name for symbol in index.free_symbols}
        masks = [] if self.rows_fit else ["xmask"]
        if self.lane_axes:
            inner = bool(mode) or bool(names & self.inner)
            masks += ["rmask"] if inner and not self.lanes_fit else []
            shape = self.tile_shape(inner)
        else:
            shape = "[XBLOCK]"
        if self.vectors is not None and self.vectors.holds(index) and not (mode or mask):
            rows = [] if self.rows_fit else ["xmask"]
            self.store_tile(buffer, index, value, shape, [*rows, "row_whole"], mode, mask)
            masks.append("(row_whole == 0)")
        if self.flat_vector and index == self.flat_index and not (mode or mask):
            self.store_tile(buffer, index, value, shape, ["xwhole"], mode, mask)
            masks.append("(xwhole == 0)")
        self.store_tile(buffer, index, value, shape, masks, mode, mask)

    def store_tile(
        self, buffer: str, index: sympy.Expr, value: str, shape: str, masks: list[str], mode: str,
        mask: str | None,
    ) -> None:  # fmt: skip
        """A store of a tile of a shape, under tile masks and a mask of the statement."""
        parts = (f"tl.broadcast_to({part}, {shape})" for part in self.index_parts(index))
        address = " + ".join([buffer, *parts])
        if not {symbol.name for symbol in index.free_symbols} - self.size_names:
            address = f"{buffer} + tl.full({shape}, {integer_text(index)}, tl.int64)"
        masks += [f"tl.broadcast_to({mask}, {shape})"] if mask else []
        condition = f", {' & '.join(masks)}" if masks else ""
        if mode not in ("", "add", "set"):
            raise NotImplementedError(f"a scatter with {mode!r}: Triton's atomics lose NaN")
        call = "atomic_add" if mode == "add" else "store"
        order = ', sem="relaxed"' if mode == "add" else ""
        self.line(f"tl.{call}({address}, tl.broadcast_to({value}, {shape}){condition}{order})")

    def reduce(self, kind: str, value: str, dtype: torch.dtype) -> str:
        """A Reduce of a persistent kernel: reduce the tile."""
        self.reduced += 1
        return reductions.reduce_row(self.row(), kind, value, dtype, f"reduced{self.reduced}")

    def reduce_columns(self, column: ColumnReduce, value: str, dtype: torch.dtype) -> None:
        """A ColumnReduce: take the tile's rows."""
        take(self, column, value, dtype)

    def row(self) -> reductions.RowContext:
        """The row that reductions run over."""
        points = self.inner_points
        return reductions.RowContext(
            self.lanes_fit,
            f"({integer_text(self.inner_points)})",
            "tl.int64" if self.wide else "tl.int32",
            self.helper,
            self.line,
            self.reductions,
            self.tiling.group,
            not isinstance(points, int) or points > reductions.LONG_LOOP * self.tiling.rblock,
        )

    def start_of(self, scan: Scan) -> str:
        """What a Scan begins with, in the dtype it is carried in."""
        dtype = scan.dtype
        narrow = not dtype.is_floating_point and dtype.itemsize < 4
        kind = "max" if scan.kind == "logaddexp" else scan.kind
        return reductions.identity(kind, torch.int32 if narrow else dtype)

    # The function

    def source(self) -> str:
        """Header, helpers and the function."""
        function = self.function()
        helpers = (text.strip("\n") + "\n" for text in self.helpers.values())
        return "\n".join([HEADER, *helpers, function])

    def program(self, dim: int) -> str:
        """The number of the program along a dimension of the grid."""
        return self.programs[dim] if self.programs else f"tl.program_id({dim})"

    def function(self) -> str:
        """The function; `helpers` are what it calls."""
        if self.kernel.shares == 0:
            self.row_prologue(self.program(1 if self.tiling.lane_first else 0))
        if not self.lane_axes:
            Replay(TritonOps(self)).run(self.kernel.body)
        elif self.tiling.lanes:
            program = self.program(0 if self.tiling.lane_first else 1)
            self.lanes(f"{program} * RBLOCK + tl.arange(0, RBLOCK){self.sides[1]}")
            Replay(TritonOps(self)).run(self.kernel.body)
        elif self.kernel.shares != 0:
            write_shares(self)
        elif self.tiling.tiles:
            write_row_tiles(self)
        elif self.tiling.persistent and (count := first_count(self.kernel)):
            self.lanes("tl.arange(0, RBLOCK)[None, :]")
            write_first_sorted(self, count)
        elif self.tiling.persistent:
            self.lanes("tl.arange(0, RBLOCK)[None, :]")
            Replay(TritonOps(self)).run(self.loads_first(self.kernel.body))
        else:
            self.looped()
        arguments = [*self.programs, *(param.name for param in self.kernel.params)]
        arguments += [str(size) for size in self.kernel.sizes]
        arguments += [f"{name}: tl.constexpr" for name in constants_of(self.tiling)]
        head = f"@triton.jit\ndef {self.name}({', '.join(arguments)}):"
        return "\n".join([head, *self.lines, ""])

    def loads_first(self, body: Body) -> Body:
        """A body with its loads in front, as many as registers hold: a load behind a reduction
        would begin only when all threads have met there.
        """
        each = max(1, self.tiling.xblock * self.tiling.rblock // (32 * self.tiling.warps))
        early: list[Statement] = []
        for statement in body:
            if (
                isinstance(statement, Load)
                and statement.mask is None
                and not any(name.startswith("v") for name in free_names(statement.index))
            ):
                early.append(statement)
        early = early[: max(1, EARLY_REGISTERS // each)]
        return (*early, *(s for s in body if s not in early))

    def row_prologue(self, program: str) -> None:
        """The row index of a program, or of a numbered tile, its mask, and the axes from it."""
        program += ".to(tl.int64)" if self.wide else ""
        lanes = "tl.arange(0, XBLOCK)" + (self.sides[0] if self.lane_axes else "")
        if self.tiling.repeats:
            self.line(f"xfirst = {program} * XBLOCK")
            self.line(f"xrow = {lanes}")
            self.line("xindex = xfirst + xrow")
        else:
            self.line(f"xindex = {program} * XBLOCK + {lanes}")
        if self.tiling.dealt:
            self.deal("xindex")
        if not self.rows_fit:
            points = integer_text(self.outer_points)
            self.line(f"xmask = xindex < {points}")
            if self.flat_vector:
                wider = wider_vectors(self.kernel, self.flat_index, self.flat_vector)
                for line in flat_masks(points, self.flat_vector, wider):
                    self.line(line)
        self.unravel(self.rows, "xindex")
        if self.scalar_rows:
            self.line(f"xindex_scalar = {program}")
            self.unravel(self.rows, "xindex_scalar", "_scalar")
        if self.vectors is not None:
            for line in self.vectors.prologue(self.index_text(self.vectors.offset)):
                self.line(line)
        if self.tiling.apart:
            program = self.program(1) + (".to(tl.int64)" if self.wide else "")
            self.line(f"yindex = tl.full([1, 1], 0, tl.int32) + {program}")
            self.unravel(apart_axes(self.kernel, self.tiling), "yindex")

    def lanes(self, rindex: str) -> None:
        """The lane index, its mask, and the inner axes from it."""
        if self.vectors is not None:
            for line in self.vectors.masks(rindex):
                self.line(line)
            self.unravel(self.lane_axes, "rindex")
            return
        self.line(f"rindex = {rindex}" + (".to(tl.int64)" if self.wide else ""))
        if self.tiling.dealt:
            self.deal("rindex")
        if not self.lanes_fit:
            self.line(f"rmask = rindex < {integer_text(self.inner_points)}")
        self.unravel(self.lane_axes, "rindex")

    def lanes_from(self, start: str) -> None:
        """The lanes of a tile along the row. Where tiles divide the innermost axis, the others have
        one value in each.
        """
        lanes = f"{start} + tl.arange(0, RBLOCK)[None, :]"
        *others, last = self.lane_axes
        if not others or not divides(self.tiling.rblock, last.size):
            self.lanes(lanes)
            return
        wide = ".to(tl.int64)" if self.wide else ""
        self.line(f"rindex = ({lanes}){wide}")
        if not self.lanes_fit:  # of outer axes that are symbolic
            self.line(f"rmask = rindex < {integer_text(self.inner_points)}")
        self.line(f"{last.symbol} = rindex - {start} // {last.size} * {last.size}")
        self.line(f"rest = tl.full([1, 1], 0, tl.int32){wide} + {start} // {last.size}")
        self.unravel(others, "rest")

    def deal(self, index: str) -> None:
        """Hide from Triton that an index is contiguous: it gives contiguous points to one thread in
        fours, to store them at once.
        """
        ones = "[1, 1]" if self.lane_axes else "1"
        # Where runs have one point, it is each point that a divisor would be claimed of.
        self.line(f"{index} = tl.max_contiguous(tl.multiple_of({index}, {ones}), {ones})")

    def unravel(self, axes: Sequence[Axis], flat: str, suffix: str = "") -> None:
        """Each axis from the flattened index, innermost fastest; `suffix`: of the names."""
        below: Integer = 1
        for position, axis in reversed(list(enumerate(axes))):
            text = flat if below == 1 else f"{flat} // ({integer_text(below)})"
            if position > 0:
                text = (
                    f"{text} % ({integer_text(axis.size)})"
                    if below == 1
                    else f"({text}) % ({integer_text(axis.size)})"
                )
            self.line(f"{axis.symbol}{suffix} = {text}")
            below = axis.size * below

    def looped(self) -> None:
        """One loop over the row for each phase."""
        replay = Replay(TritonOps(self))
        backward = False
        for phase in split_phases(self.kernel):
            replay.run(phase.row)
            if phase.inner or phase.reduces:
                self.loop(replay, phase.inner, phase.reduces, backward)
                # The end of the row, read last, is still in the caches.
                backward = not backward

    def loop(self, replay: Replay, body: Body, reduces: Sequence[Reduce], backward: bool) -> None:
        """`for` over the row in steps of RBLOCK; each Reduce has a running tile, reduced after."""
        row = self.row()
        # A sum of exponentials has the greatest element beside it, squared deviations the mean.
        beside = {
            ("max", r.value): f"{r.name}_all_top"
            for r in reduces if r.kind == "sum_exp" and row.group > 1
        } | {
            ("mean", r.value): reductions.mean_of(row, r.name)
            for r in reduces if r.kind == "squared_deviations"
        }  # fmt: skip
        extra = [r for r in reduces if (r.kind, r.value) in beside]
        reduces = [r for r in reduces if r not in extra]
        for reduce in reduces:
            reductions.start(row, reduce, self.dtype_of_value(reduce.value))
        for scan in body:
            if isinstance(scan, Scan):
                narrow = not scan.dtype.is_floating_point and scan.dtype.itemsize < 4
                kind = TRITON_TYPES[torch.int32 if narrow else scan.dtype]
                self.line(
                    f"{scan.name}_carry = tl.full([XBLOCK, 1], {self.start_of(scan)}, {kind})"
                )
        points = integer_text(self.inner_points if not self.vectors else self.vectors.span)
        self.line(f"for start in range(0, {points}, RBLOCK):")
        self.depth += 1
        ordered = any(isinstance(s, Scan) for s in body) or any(
            reduce.kind in reductions.POSITIONS for reduce in reduces
        )
        if scan_direction(body) or (backward and not ordered):
            self.line(f"start = (({points} + RBLOCK - 1) // RBLOCK - 1) * RBLOCK - start")
        self.carried = True
        self.lanes_from("start")
        replay.run(body)
        for reduce in reduces:
            reductions.advance(row, reduce, self.dtype_of_value(reduce.value))
        self.depth -= 1
        for reduce in (*reduces, *extra):
            dtype = self.dtype_of_value(reduce.value)
            key = reduce.kind, reduce.value
            result = beside[key] if reduce in extra else reductions.finish(row, reduce, dtype)
            self.line(f"{reduce.name} = {result}")
            replay.values[reduce.name] = reduce.name
            replay.dtypes[reduce.name] = reduce.dtype

    def dtype_of_value(self, name: str) -> torch.dtype:
        """The dtype of a value that has not been replayed yet."""
        return next(s.dtype for s in self.kernel.body if getattr(s, "name", None) == name)  # type: ignore[union-attr]

    def needs_64_bits(self) -> bool:
        """Whether an index may pass 2**31: sizes are symbolic, or a static index is that large."""
        if self.places & self.size_names:
            return True
        extents = {axis.symbol: axis.size - 1 for axis in (*self.kernel.outer, *self.kernel.inner)}
        extents[SHARE] = self.kernel.shares - 1
        if points := tile_points(self.kernel.body):
            extents[TILE] = (self.kernel.outer[-1].size - 1) // points
        largest = int(self.outer_points) + self.tiling.xblock
        for statement in self.kernel.body:
            index = getattr(statement, "index", None)
            if index is None:
                continue
            largest = max(largest, _upper_bound(index, extents))
        return largest >= 2**31


def _names_of_places(kernel: LoopKernel) -> set[str]:
    """The names in axes and indices. What is only passed as a value (a seed) is in none of them."""
    names = {symbol.name for axis in (*kernel.outer, *kernel.inner) for symbol in free(axis.size)}
    for statement in kernel.body:
        index = index_of(statement)
        if index is not None and not (isinstance(statement, IndexValue) and index.is_Symbol):
            names.update(symbol.name for symbol in index.free_symbols)
        if isinstance(statement, CheckIndex):
            names.update(symbol.name for symbol in free(statement.size))
    return names


def free(size: Integer) -> set[sympy.Symbol]:
    """The symbols of a size."""
    return set() if isinstance(size, int) else size.free_symbols


def indirect_names(kernel: LoopKernel) -> set[str]:
    """The values that index expressions name."""
    known = {axis.symbol.name for axis in (*kernel.outer, *kernel.inner)}
    known |= {SHARE.name, TILE.name, *(symbol.name for symbol in kernel.sizes)}
    indices = [index for s in kernel.body if (index := index_of(s)) is not None]
    return set().union(*map(free_names, indices)) - known


def _upper_bound(index: sympy.Expr, extents: dict[sympy.Symbol, int]) -> int:
    """A bound of a static index expression: every positive term at its largest. Indirect indices
    count as 1: these are int64 values, and so is what is computed with them.
    """
    values = dict.fromkeys(free_names(index), 1) | {s.name: int(v) for s, v in extents.items()}
    return sum(abs(int(evaluate_expr(term, values))) for term in sympy.Add.make_args(index))


def _not_constant(body: Body, constant: set[str]) -> set[str]:
    """The names of index expressions and of values that vary within a tile."""
    varying: set[str] = set()
    for statement in body:
        index = index_of(statement)
        names = {*operands(statement), *(free_names(index) if index is not None else ())}
        axes = {name for name in names if name not in constant and not name.startswith("v")}
        varying |= axes
        name = defined_name(statement)
        if name is not None and names & varying:
            varying.add(name)
    return varying


def divides(block: Integer, extent: Integer) -> bool:
    """Whether tiles are known to lie inside an extent; an empty one needs masks."""
    static = isinstance(extent, int) and isinstance(block, int)
    return static and extent > 0 and extent % block == 0


def product_of(axes: Sequence[Axis]) -> Integer:
    """The number of points of some axes."""
    total: Integer = 1
    for axis in axes:
        total = axis.size * total
    return total
