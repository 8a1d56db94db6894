"""Writes a matrix product for a CPU's tile unit: the vector units compute the epilogue of a block
of results while the tile unit multiplies the next one.

static void k_part(buffers, ints, begin, end) {
  tile_block<int32_t> behind = {};                 // results that are summed, but not stored
  const auto finish = [&](int64_t row) { for (lane ...) store b2[...] = epilogue(sums); };
  for (task = begin; task < end; ++task)           // some rows, as many lanes as stay in the cache
    for (group = 0; group < lanes; group += 64) {
      for (panel = group; panel < group + width; panel += 32)
        multiply_tiles<...>(unit, rows, left, ..., right, ..., sums, ..., [&] { finish some rows });
      finish the other rows; behind = this block;
    }
  finish the last block;
}

Sums go through the whole inner axis at once.
"""

from __future__ import annotations

from flambeau_inductor.codegen.cpp.cpp_types import storage_type
from flambeau_inductor.codegen.cpp.matmul import MatmulWriter
from flambeau_inductor.codegen.cpp.matmul_tiling import TILE_LANES


class TileUnitWriter(MatmulWriter):
    """Writes one product."""

    def tasks(self) -> None:
        """The loop over tasks, each of which finishes the block before; then the last block."""
        self.finisher()
        super().tasks()
        self.line("while (finished < behind.rows) finish(finished++);")

    def memory(self) -> None:
        """Two blocks of sums and a task's copies, on the stack."""
        tiling = self.tiling
        self.blocks()
        self.array(f"{self.step}::element", "sums", 2 * tiling.row_block * TILE_LANES)
        ctype = storage_type(self.copied)
        if self.copies_left:
            self.array(ctype, "copied_left", tiling.row_block * self.row_stride)
        if not tiling.packed:
            self.array(ctype, "copied_right", tiling.kblock * tiling.width)

    def finisher(self) -> None:
        """The epilogue of a row of the block behind."""
        self.line("tile_unit unit;")
        self.line(f"tile_block<{self.step}::element> behind = {{}};")
        self.line("int64_t finished = 0, half = 0;")
        with self.block("const auto finish = [&](int64_t row) __attribute__((always_inline))"):
            if self.contraction.groups is not None:
                self.line(f"const int64_t {self.contraction.groups.value} = behind.group;")
            self.unravel(self.contraction.batch, "behind.task / row_blocks / lane_blocks")
            self.finish_row(
                "behind.first_row", "behind.first_lane", "behind.lanes",
                f"behind.sums + row * {TILE_LANES}",
            )  # fmt: skip
        self.text[-1] += ";"

    def task(self) -> None:
        """Rows and lanes, a block of lanes at a time."""
        tiling = self.tiling
        self.extent()
        self.line(f"const int64_t first = 0, steps = {self.size(self.inner)};")
        self.left()
        with self.block(f"for (int64_t group = 0; group < lanes; group += {TILE_LANES})"):
            self.line("const int64_t rest = lanes - group;")
            self.line(f"const int64_t width = rest < {TILE_LANES} ? rest : {TILE_LANES};")
            size = tiling.row_block * TILE_LANES
            self.line(f"{self.step}::element *const block = sums + half * {size};")
            self.line("half = 1 - half;")
            blocks = tiling.kblock // tiling.block_of_steps
            panels = f"((width + {tiling.width - 1}) / {tiling.width})"
            self.line(f"const int64_t calls = (rows + 31) / 32 * {panels} * {blocks};")
            self.line("int64_t due = 0;")
            step = f"panel += {tiling.width}"
            with self.block(f"for (int64_t panel = group; panel < group + width; {step})"):
                self.multiply()
            self.line("while (finished < behind.rows) finish(finished++);")
            groups = self.contraction.groups
            group = "0" if groups is None else groups.value
            place = f"task, {group}, first_row, rows, first_lane + group, width, block"
            self.line(f"behind = {{{place}}};")
            self.line("finished = 0;")

    def multiply_panel(self, stored: str) -> None:
        """The call that multiplies `left` by `right`, and finishes some rows of the block behind
        after each of the unit's steps.
        """
        tiling = self.tiling
        form = f"{self.step}, {stored}, {tiling.lane_bytes}, {tiling.vectors}"
        with self.block("const auto meanwhile = [&]() __attribute__((always_inline))"):
            self.line("for (due += behind.rows; due >= calls; due -= calls) finish(finished++);")
        self.text[-1] += ";"
        steps = tiling.kblock // tiling.numbers
        self.line(
            f"multiply_tiles<{form}>(unit, rows, left, left_stride, right, right_stride, "
            f"(char *)(block + panel - group), {TILE_LANES * 4}, {steps}, meanwhile);"
        )
