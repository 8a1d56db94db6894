"""Writes a matrix product as C++: register tiles over panels of the right operand, then the
epilogue while the sums are in the cache.

static void k_part(buffers, ints, begin, end) {
  for (task = begin; task < end; ++task) {           // a block of results
    for (depth = 0; depth < 1024; depth += 256) {
      copy rows of the left operand, where they cannot be read as they lie
      for (panel = 0; panel < lanes; panel += 32)    // sums += left * panel
        multiply_rows<float_words, stored_words, 64, 14, 2>(rows, left, ..., right, ..., sums, ...);
    }
    for (row ...) for (lane ...) store b2[...] = epilogue(sums[row][lane])
  }
}

For dot products (`dots`), lanes are read along the inner axis as they lie, or computed before, a
few at a time. Rows in groups, each with its own right operand: a task's rows are of one group.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.codegen.cpp.copied_pieces import PIECE, cut_into_pieces
from flambeau_inductor.codegen.cpp.cpp_types import storage_type
from flambeau_inductor.codegen.cpp.matmul_tiling import SERIAL_WORK, TILE_STEPS
from flambeau_inductor.codegen.cpp.plan import static_product, stride_along
from flambeau_inductor.codegen.cpp.wide_integers import widen_integers
from flambeau_inductor.codegen.cpp.writer import LoopWriter
from flambeau_inductor.codegen.packed_operand import steps_of, unpack
from flambeau_inductor.indexing.expressions import free_names, linear_parts
from flambeau_inductor.ir import Load, defined_name, index_of, operands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau_inductor.codegen.contraction import Contraction, Operand
    from flambeau_inductor.codegen.cpp.matmul_tiling import CppMatmulTiling
    from flambeau_inductor.codegen.packed_operand import PackedOperand
    from flambeau_inductor.ir import Axis, Body, LoopKernel, Statement
    from flambeau_inductor.lowering.row_groups import RowGroups

LONGEST_STEP = 256
"""Points of the inner axis that are computed in one loop where nothing bounds it."""

STEPS = {
    "float": "float_words", "bfloat16": "bfloat16_pairs", "int16": "int16_pairs",
    "int8": "int8_quads",
}  # fmt: skip
STORED = {
    (torch.float32, "float"): "stored_words",
    (torch.bfloat16, "float"): "stored_bfloat16",
    (torch.float16, "float"): "stored_float16",
    (torch.bfloat16, "bfloat16"): "stored_words",
    (torch.int8, "int16"): "stored_int8",
    (torch.int8, "int8"): "stored_words",
}
"""How the right operand is read as words: its dtype, what a word holds -> prelude."""

COPIES = {
    "float": torch.float32, "bfloat16": torch.bfloat16, "int16": torch.int16, "int8": torch.int8,
}  # fmt: skip
"""The dtype of copied operands."""


def left_stride(
    kernel: LoopKernel, contraction: Contraction, numbers: int, *, tiles: bool = False
) -> sympy.Expr | None:
    """The stride of the left operand's rows in elements, if they can be read as they lie, by the
    tile unit if `tiles`; words hold so many `numbers`.
    """
    load = contraction.left.load
    if load is None or len(kernel.inner) != 1 or load.dtype.itemsize * numbers != 4:
        return None
    (inner,) = kernel.inner
    if load.dtype is torch.int8 and not tiles:
        return None  # it is shifted
    block = numbers * TILE_STEPS if tiles else numbers
    if block > 1 and not (isinstance(inner.size, int) and inner.size % block == 0):
        return None
    if stride_along(load.index, inner) != 1:
        return None
    return flat_stride(load.index, contraction.rows)


def right_stride(kernel: LoopKernel, contraction: Contraction) -> sympy.Expr | None:
    """The stride along the inner axis of a right operand of floats whose lanes lie side by side."""
    load = contraction.right.load
    if load is None or load.dtype is not torch.float32 or len(contraction.lanes) != 1:
        return None
    if stride_along(load.index, contraction.lanes[0]) != 1:
        return None
    return stride_along(load.index, kernel.inner[0])


def dot_strides(
    kernel: LoopKernel, contraction: Contraction
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The strides of rows and lanes in elements, if both operands lie side by side along the inner
    axis.
    """
    strides = []
    for operand, axes in (
        (contraction.left, contraction.rows), (contraction.right, contraction.lanes),
    ):  # fmt: skip
        load = operand.load
        if load is None or len(kernel.inner) != 1 or stride_along(load.index, kernel.inner[0]) != 1:
            return None
        stride = flat_stride(load.index, axes)
        if stride is None:
            return None
        strides.append(stride)
    return strides[0], strides[1]


def flat_stride(index: sympy.Expr, axes: Sequence[Axis]) -> sympy.Expr | None:
    """The stride of some axes taken as one; None if they cannot be, 0 if there are none."""
    parts = linear_parts(index, frozenset(axis.symbol.name for axis in axes))
    if parts is None:
        return None
    step, expected = sympy.S.Zero, None
    for axis in reversed(axes):
        own = parts[0].get(axis.symbol.name, sympy.S.Zero)
        if expected is not None and sympy.expand(own - expected) != 0:
            return None
        step = own if expected is None else step
        expected = own * axis.size
    return step


@dataclass(frozen=True)
class Digits:
    """An operand that is computed in steps of so many points of the inner axis, which are a part of
    that axis.
    """

    unpacked: PackedOperand
    step: int


def digits_of(operand: Operand, inner: Axis) -> Digits | None:
    """How to compute an operand whose numbers share bytes along the inner axis, or scales; None if
    they share nothing.
    """
    if operand.load is not None or not isinstance(inner.size, int):
        return None
    step = min(steps_of(operand.body, inner), default=LONGEST_STEP)
    step = gcd(step, inner.size)
    unpacked = unpack(operand.body, operand.value, inner, step, least=1)
    return None if unpacked is None else Digits(unpacked, step)


def computes_lanes(kernel: LoopKernel, contraction: Contraction) -> bool:
    """Whether the right operand is computed from what lies along the inner axis."""
    right, left = contraction.right, contraction.left
    if right.load is not None or len(kernel.inner) != 1 or not right.dtype.is_floating_point:
        return False
    if left.load is not None and stride_along(left.load.index, kernel.inner[0]) != 1:
        return False
    inner, lanes = kernel.inner[0].symbol, contraction.lanes
    walks = [each.index for each in right.body
             if isinstance(each, Load) and inner in each.index.free_symbols]  # fmt: skip
    return bool(lanes) and all(stride_along(index, lanes[-1]) != 1 for index in walks)


def without_search(epilogue: Body, group: str) -> Body:
    """The statements behind a sum, without those that only say which group a row belongs to."""
    live: set[str] = set()
    result: list[Statement] = []
    for statement in reversed(epilogue):
        name = defined_name(statement)
        if name is None or (name in live and name != group):
            result.append(statement)
            live.update(operands(statement))
            if (index := index_of(statement)) is not None:
                live |= free_names(index)
    return tuple(result[::-1])


def reads_along(operand: Operand, axis: Axis) -> int:
    """How many loads of an operand have elements side by side along an axis."""
    loads = (each for each in operand.body if isinstance(each, Load))
    return sum(stride_along(each.index, axis) == 1 for each in loads)


class MatmulWriter(LoopWriter):
    """Writes one product."""

    def __init__(
        self, kernel: LoopKernel, name: str, tiling: CppMatmulTiling, threads: int
    ) -> None:
        super().__init__(kernel)
        contraction = contraction_of(kernel)
        assert contraction is not None and len(kernel.inner) == 1
        self.contraction = contraction
        self.tiling = tiling
        self.name = name
        self.threads = threads
        (self.inner,) = kernel.inner
        self.depth_name = self.inner.symbol.name
        self.step = ("signed_" if tiling.tiles and tiling.step == "int8" else "") + STEPS[
            tiling.step
        ]
        self.copied = COPIES[tiling.step]
        self.left_stride = left_stride(kernel, contraction, tiling.numbers, tiles=tiling.tiles)
        if tiling.dots and not tiling.copies_right:
            strides = dot_strides(kernel, contraction)
            assert strides is not None
            self.left_stride, self.lane_stride = strides
        self.copies_left = tiling.copies_left or self.left_stride is None
        self.right_stride = right_stride(kernel, contraction)
        self.copies_right = not (tiling.packed or tiling.dots) and (
            tiling.copies_right or tiling.numbers > 1 or self.right_stride is None
        )
        groups = contraction.groups
        self.epilogue = contraction.epilogue
        if groups is not None:  # a task knows the group of its rows
            self.epilogue = without_search(contraction.epilogue, groups.value)
            self.replay.values[groups.value] = groups.value
            self.replay.dtypes[groups.value] = torch.int64
        self.row_stride = tiling.row_stride

    def write(self) -> str:
        """The part function and the entry."""
        arguments = "void *const *buffers, const int64_t *ints"
        with self.block(f"static void {self.name}_part({arguments}, int64_t begin, int64_t end)"):
            self.declarations()
            if static_product(self.kernel.outer) != 0:
                self.memory()
                self.tasks()
        with self.block(f"EXPORT void {self.name}({arguments})"):
            self.size_declarations()
            self.entry()
        return "\n".join(self.text) + "\n"

    # Tasks

    def tasks(self) -> None:
        """The loop over a thread's share of the tasks."""
        with self.loop("task", "begin", "end"):
            self.task()

    def blocks(self) -> None:
        """The numbers of tasks along rows and lanes."""
        tiling, contraction = self.tiling, self.contraction
        for word, axes, block in (
            ("row", contraction.rows, tiling.row_block),
            ("lane", contraction.lanes, tiling.lane_block),
        ):
            self.line(f"const int64_t {word}_points = {self.product(axes) or '1'};")
            if word == "row" and contraction.groups is not None:
                self.group_blocks(contraction.groups)
                continue
            self.line(f"const int64_t {word}_blocks = ({word}_points + {block - 1}) / {block};")

    def group_blocks(self, groups: RowGroups) -> None:
        """The number of tasks along rows, of groups that are known when the kernel runs."""
        params = [param.name for param in self.kernel.params]
        offset = self.printer.index_text(groups.offset)
        number = params.index(groups.bounds)
        self.line(f"const int32_t *const ends = (const int32_t *)buffers[{number}] + {offset};")
        arguments = f"ends, {groups.count}, row_points, {self.tiling.row_block}"
        self.line(f"const int64_t row_blocks = blocks_of_groups({arguments});")

    def group_rows(self, groups: RowGroups) -> None:
        """The rows of a task, all of one group."""
        count, block, name = groups.count, self.tiling.row_block, groups.value
        self.line(f"int64_t place = task % row_blocks, {name} = 0;")
        head = f"for (; {name} < {count - 1}; ++{name})"
        with self.block(head):
            arguments = f"ends, {name}, {count}, row_points, {block}"
            self.line(f"const int64_t blocks = blocks_of_group({arguments});")
            self.line("if (place < blocks) break;")
            self.line("place -= blocks;")
        start, end = (f"end_of_group(ends, {each}, {count}, row_points)"
                      for each in (f"{name} - 1", name))  # fmt: skip
        self.line(f"const int64_t first_row = {start} + place * {block};")
        rest = f"{end} - first_row"
        self.line(f"const int64_t rows = {rest} < {block} ? {rest} : {block};")

    def entry(self) -> None:
        """Runs all tasks, or a share in each thread if there is enough work."""
        self.blocks()
        batch = self.product(self.contraction.batch) or "1"
        self.line(f"const int64_t n = row_blocks * lane_blocks * {batch};")
        axes = (*self.kernel.outer, self.inner)
        work = static_product(axes)
        call = f"{self.name}_part(buffers, ints"
        if self.threads == 1 or (work is not None and work < SERIAL_WORK):
            self.line(f"{call}, 0, n);")
            return
        with self.block(f"if (n == 1 || {self.product(axes)} < {SERIAL_WORK})"):
            self.line(f"{call}, 0, n);")
            self.line("return;")
        limit = f" num_threads({self.threads})" if self.threads else ""
        self.line(f"#pragma omp parallel{limit}")
        with self.block(""):
            self.line("const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();")
            self.line(f"{call}, share(n, t, count, 1), share(n, t + 1, count, 1));")

    def memory(self) -> None:
        """A task's sums and copies, on the stack."""
        tiling = self.tiling
        self.blocks()
        rows = tiling.row_block + tiling.shifted
        self.array(f"{self.step}::element", "sums", rows * tiling.lane_block)
        copied = storage_type(self.copied)
        if self.copies_left:
            self.array(copied, "copied_left", rows * self.row_stride)
        if tiling.dots and tiling.copies_right:
            self.array(copied, "copied_right", tiling.dots * self.row_stride)
        elif not tiling.packed and not tiling.dots:
            self.array(copied, "copied_right", tiling.kblock * tiling.width)

    def array(self, ctype: str, name: str, count: int) -> None:
        """Aligned memory on the stack."""
        self.line(f"{ctype} {name}[{count}] __attribute__((aligned(64)));")

    def task(self) -> None:
        """A block of results: sums over the whole inner axis, then the epilogue."""
        tiling = self.tiling
        self.extent()
        length = self.size(self.inner)
        with self.block(f"for (int64_t first = 0; first < {length}; first += {tiling.kblock})"):
            rest = f"{length} - first"
            self.line(f"const int64_t steps = {rest} < {tiling.kblock} ? {rest} : {tiling.kblock};")
            self.left()
            if tiling.dots and tiling.copies_right:
                with self.block(f"for (int64_t panel = 0; panel < lanes; panel += {tiling.dots})"):
                    self.multiply_copied_dots()
            elif tiling.dots:
                self.multiply_dots()
            else:
                step = f"panel += {tiling.width}"
                with self.block(f"for (int64_t panel = 0; panel < lanes; {step})"):
                    self.multiply()
        with self.loop("row", "0", "rows"):
            self.finish_row("first_row", "first_lane", "lanes", f"sums + row * {tiling.lane_block}")

    def extent(self) -> None:
        """A task's place, and the indices that all of its results share."""
        tiling = self.tiling
        groups = self.contraction.groups
        if groups is None:
            self.line(f"const int64_t first_row = task % row_blocks * {tiling.row_block};")
        else:
            self.group_rows(groups)
        self.line(
            f"const int64_t first_lane = task / row_blocks % lane_blocks * {tiling.lane_block};"
        )
        for word, block in (("row", tiling.row_block), ("lane", tiling.lane_block)):
            if word == "row" and groups is not None:
                continue
            rest = f"{word}_points - first_{word}"
            self.line(f"const int64_t {word}s = {rest} < {block} ? {rest} : {block};")
        self.unravel(self.contraction.batch, "task / row_blocks / lane_blocks")

    def finish_row(self, first_row: str, first_lane: str, lanes: str, sums: str) -> None:
        """The epilogue of a row of sums."""
        self.unravel(self.contraction.rows, f"{first_row} + row")
        self.line(f"const {self.step}::element *const sum = {sums};")
        with self.lane_loop(first_lane, f"{first_lane} + {lanes}") as lane:
            reduce = self.contraction.reduce
            ctype = storage_type(reduce.dtype)
            value = f"sum[{lane} - {first_lane}]"
            if self.tiling.shifted:
                value += f" - sums[rows * {self.tiling.lane_block} + {lane} - {first_lane}]"
            self.line(f"const {ctype} {reduce.name} = {value};")
            self.replay.values[reduce.name] = reduce.name
            self.replay.dtypes[reduce.name] = reduce.dtype
            self.statements(self.epilogue)

    def unravel(self, axes: Sequence[Axis], place: str) -> None:
        """The indices of some axes, from a place among their points."""
        if not axes:
            return
        if len(axes) > 1:
            rest = f"{axes[0].symbol.name}_rest"
            self.line(f"int64_t {rest} = {place};")
            for axis in axes[:0:-1]:
                size = self.size(axis)
                self.line(f"const int64_t {axis.symbol.name} = {rest} % {size}; {rest} /= {size};")
            place = rest
        self.line(f"const int64_t {axes[0].symbol.name} = {place};")

    @contextmanager
    def lane_loop(self, begin: str, end: str) -> Iterator[str]:
        """A vector loop over lanes; gives the C++ for the place among them. Where lanes have
        several axes, one loop for each run of the innermost; where they have none, no loop.
        """
        if not self.contraction.lanes:
            with self.block(""):
                yield begin
            return
        *outer, inner = self.contraction.lanes
        name = inner.symbol.name
        if not outer:
            self.simd()
            with self.loop(name, begin, end):
                yield name
            return
        size = self.size(inner)
        with self.block(f"for (int64_t lane = {begin}, next; lane < {end}; lane = next)"):
            self.line(f"const int64_t start = lane % {size};")
            self.line(f"next = lane - start + {size} < {end} ? lane - start + {size} : {end};")
            self.unravel(outer, f"lane / {size}")
            self.simd()
            with self.loop(name, "start", "start + next - lane"):
                yield f"({name} - start + lane)"

    # Operands

    def address(self, operand: Operand) -> str:
        """Where an operand's element lies."""
        load = operand.load
        assert load is not None
        return f"(const char *)({load.buffer} + {self.printer.index_text(load.index)})"

    def left(self) -> None:
        """`left` and the stride of its rows in bytes."""
        contraction, tiling = self.contraction, self.tiling
        size = self.copied.itemsize
        if self.copies_left:
            stride = self.row_stride
            with self.loop("row", "0", "rows"):
                self.unravel(contraction.rows, "first_row + row")
                self.copy(contraction.left, f"copied_left + row * {stride}")
                if tiling.tiles:
                    rest = f"({tiling.kblock} - steps) * {size}"
                    self.line(f"__builtin_memset(copied_left + row * {stride} + steps, 0, {rest});")
                elif tiling.numbers == 2:
                    self.line(f"if (steps % 2) copied_left[row * {stride} + steps] = 0;")
            if tiling.shifted:
                self.line(f"__builtin_memset(copied_left + rows * {stride}, 128, {stride});")
            self.line("const char *const left = (const char *)copied_left;")
            self.line(f"const int64_t left_stride = {stride * size};")
            return
        assert self.left_stride is not None
        self.line("const char *left;")
        with self.block(""):
            self.unravel(contraction.rows, "first_row")
            self.line(f"const int64_t {self.depth_name} = first;")
            self.line(f"left = {self.address(contraction.left)};")
        if tiling.dots:
            size = contraction.left.dtype.itemsize
        self.line(
            f"const int64_t left_stride = ({self.printer.index_text(self.left_stride)}) * {size};"
        )

    def copy(self, operand: Operand, row: str) -> None:
        """A row of an operand along the inner axis, computed and converted; `row`: where to."""
        load, name = operand.load, self.depth_name
        plain = load is not None and load.dtype is torch.float16
        if plain and stride_along(load.index, self.inner) == 1:  # type: ignore[union-attr]
            with self.block(""):
                self.line(f"const int64_t {name} = first;")
                source = f"{load.buffer} + {self.printer.index_text(load.index)}"  # type: ignore[union-attr]
                self.line(f"widen_float16({source}, {row}, steps);")
            return
        digits = digits_of(operand, self.inner)
        if digits is not None and (self.tiling.tiles or self.tiling.kblock % digits.step == 0):
            self.copy_digits(operand, digits, row)
            return
        pieces = cut_into_pieces(operand.body, self.inner)
        if pieces is None:
            self.copy_piece(operand, operand.body, row, "first", "first + steps")
            return
        length, body = pieces
        self.line("const int64_t last = first + steps;")
        with self.loop(PIECE, f"first / {length}", f"(last + {length - 1}) / {length}"):
            start, stop = f"{PIECE} * {length}", f"({PIECE} + 1) * {length}"
            self.line(f"const int64_t low = {start} < first ? first : {start};")
            self.line(f"const int64_t high = {stop} < last ? {stop} : last;")
            self.copy_piece(operand, body, row, "low", "high")

    def copy_piece(self, operand: Operand, body: Body, row: str, begin: str, end: str) -> None:
        """A part of such a row."""
        self.simd()
        with self.loop(self.depth_name, begin, end):
            self.statements(body)
            self.put(f"({row})[{self.depth_name} - first]", operand.value, operand.dtype)

    def copy_digits(self, operand: Operand, digits: Digits, row: str) -> None:
        """Such a row in steps: all numbers of a byte at once, a scale once. A loop whose length the
        compiler knows becomes few vectors.
        """
        unpacked, step = digits.unpacked, digits.step
        period, name, body = unpacked.period, self.depth_name, unpacked.body
        wide = widen_integers(body, self.inner.symbol, set(unpacked.shared))
        if wide is not None:
            staged, body = wide
            for number, load in enumerate(staged):
                self.stage(load, f"wide_{number}", period)
        with self.block(f"for (int64_t low = first; low < first + steps; low += {step})"):
            for shared, points in unpacked.shared.items():
                self.line(f"const int64_t {shared} = low / {points};")
            self.line(f"{storage_type(self.copied)} *const to = {row} + (low - first);")
            self.simd()
            with self.loop("c", "0", str(step // period)):
                self.line(f"const int64_t {name} = low / {period} + c;")
                self.statements(body)
                for digit, value in enumerate(unpacked.values):
                    self.put(f"to[c * {period} + {digit}]", value, operand.dtype)
        self.staged.clear()

    def stage(self, load: Statement, row: str, period: int) -> None:
        """A row of loads, widened, in a separate loop."""
        assert isinstance(load, Load)
        self.array("int32_t", row, self.tiling.kblock // period)
        self.simd()
        with self.loop("c", "0", f"steps / {period}"):
            self.line(f"const int64_t {self.depth_name} = first / {period} + c;")
            self.statements([load])
            self.line(f"{row}[c] = {self.replay.values[load.name]};")
        self.staged[load.name] = f"{row}[{self.depth_name} - first / {period}]"

    def put(self, place: str, value: str, dtype: torch.dtype) -> None:
        """An element of a copied row, as words hold it."""
        text = self.printer.cast(self.replay.values[value], dtype, self.copied)
        self.line(f"{place} = {f'{text} ^ -128' if self.tiling.shifted else text};")

    def converted(self, operand: Operand) -> str:
        """An operand's value as words hold it."""
        return self.printer.cast(self.replay.values[operand.value], operand.dtype, self.copied)

    def multiply(self) -> None:
        """A panel's part of the sums."""
        tiling, right = self.tiling, self.contraction.right
        self.line("const char *right;")
        self.line(f"int64_t right_stride = {tiling.width * 4};")
        stored = "stored_words"
        if tiling.packed:
            stored = STORED[right.dtype, tiling.step]
            with self.block(""):
                self.panel()
                self.line(f"right = {self.address(right)};")
            self.line(f"right_stride = {tiling.width * right.dtype.itemsize * tiling.numbers};")
        elif self.copies_right:
            self.copy_right()
        else:
            assert self.right_stride is not None
            with self.block(f"if (panel + {tiling.width} <= lanes)"):
                self.panel()
                self.line(f"right = {self.address(right)};")
                stride = self.printer.index_text(self.right_stride)
                self.line(f"right_stride = ({stride}) * 4;")
            with self.block("else"):
                self.copy_right()
        self.multiply_panel(stored)

    def multiply_panel(self, stored: str) -> None:
        """The call that multiplies `left` by `right`."""
        tiling = self.tiling
        numbers = tiling.numbers
        steps = f"(steps + {numbers - 1}) / {numbers}" if numbers > 1 else "steps"
        form = f"{self.step}, {stored}, {tiling.lane_bytes}, {tiling.rows}, {tiling.vectors}"
        rows = "rows + 1" if tiling.shifted else "rows"
        self.line(
            f"multiply_rows<{form}>({rows}, left, left_stride, right, right_stride, "
            f"(char *)(sums + panel), {tiling.lane_block * 4}, {steps}, first == 0);"
        )

    def multiply_dots(self) -> None:
        """The sums of a task, by dot products of rows of both operands."""
        tiling, right = self.tiling, self.contraction.right
        size = right.dtype.itemsize
        stored = STORED[right.dtype, tiling.step]
        self.line("const char *right;")
        with self.block(""):
            self.unravel(self.contraction.lanes, "first_lane")
            self.line(f"const int64_t {self.depth_name} = first;")
            self.line(f"right = {self.address(right)};")
        form = f"{self.step}, {stored}, {tiling.lane_bytes}, {tiling.rows}, {tiling.dots}"
        self.line(
            f"multiply_dots<{form}>(lanes, rows, left, left_stride, right, "
            f"({self.printer.index_text(self.lane_stride)}) * {size}, (char *)sums, "
            f"{tiling.lane_block * 4}, steps * {size}, first == 0);"
        )

    def multiply_copied_dots(self) -> None:
        """The sums of a few lanes, which are computed along the inner axis before."""
        tiling, copied = self.tiling, self.copied
        count = f"lanes - panel < {tiling.dots} ? lanes - panel : {tiling.dots}"
        self.line(f"const int64_t count = {count};")
        with self.loop("lane", "0", "count"):
            self.unravel(self.contraction.lanes, "first_lane + panel + lane")
            self.copy(self.contraction.right, f"copied_right + lane * {self.row_stride}")
        stored = "stored_words"
        form = f"{self.step}, {stored}, {tiling.lane_bytes}, {tiling.rows}, {tiling.dots}"
        self.line(
            f"multiply_dots<{form}>(count, rows, left, left_stride, (const char *)copied_right, "
            f"{self.row_stride * copied.itemsize}, (char *)(sums + panel), "
            f"{tiling.lane_block * 4}, steps * {copied.itemsize}, first == 0);"
        )

    def panel(self) -> None:
        """The indices where a panel starts."""
        self.unravel(self.contraction.lanes, "first_lane + panel")
        self.line(f"const int64_t {self.depth_name} = first;")

    def copy_right(self) -> None:
        """A panel in words, with zeros behind the last lane."""
        tiling, right = self.tiling, self.contraction.right
        self.line("const int64_t start_lane = first_lane + panel;")
        rest = f"lanes - panel < {tiling.width} ? lanes - panel : {tiling.width}"
        self.line(f"const int64_t end_lane = start_lane + ({rest});")
        step = f"{self.depth_name} - first"
        numbers, block = tiling.numbers, tiling.block_of_steps
        with self.block(f"if (end_lane - start_lane < {tiling.width} || steps % {block})"):
            count = tiling.kblock * tiling.width
            self.line(f"for (int64_t c = 0; c < {count}; ++c) copied_right[c] = 0;")

        def body(lane: str) -> None:
            self.statements(right.body)
            place = f"({step}) * {tiling.width} + {lane} - start_lane"
            if numbers > 1:
                word = f"({step}) / {numbers} * {tiling.width} + {lane} - start_lane"
                place = f"({word}) * {numbers} + ({step}) % {numbers}"
            self.line(f"copied_right[{place}] = {self.converted(right)};")

        lanes = self.contraction.lanes
        if len(lanes) == 1 and reads_along(right, self.inner) > reads_along(right, lanes[0]):
            with self.loop(lanes[0].symbol.name, "start_lane", "end_lane"):
                self.simd()
                with self.loop(self.depth_name, "first", "first + steps"):
                    body(lanes[0].symbol.name)
        else:
            with (
                self.loop(self.depth_name, "first", "first + steps"),
                self.lane_loop("start_lane", "end_lane") as lane,
            ):
                body(lane)
        self.line("right = (const char *)copied_right;")
