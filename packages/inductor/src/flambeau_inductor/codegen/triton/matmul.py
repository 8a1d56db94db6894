"""A matrix product of the loop IR as one Triton function, with its prologues and its epilogue.

    kernel of contraction `v3 = reduce sum (mul v0 v1)` and `store b2 (tanh v3)`
    ->  for k in range(0, K, KBLOCK):
            v0 = tl.load(...)                  left tile [XBLOCK, KBLOCK]
            v1 = tl.load(...)                  right tile [KBLOCK, RBLOCK]
            v3 = tl.dot(v0, v1, v3)
        v4 = libdevice.tanh(v3); tl.store(...)

Operands and epilogue are printed by `kernel.KernelWriter`, as those of any kernel: a tile has rows
and lanes, which are here rows and inner axes, inner axes and lanes, rows and lanes. Tiles are
numbered in groups of `height` rows of tiles: programs that run at one time then share operands in
the L2 cache. A TileReduce of the epilogue reduces a tile over its lanes; the programs of other
tiles of the row store their partial results beside.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.contraction import FLOAT8_OPERANDS, contraction_of
from flambeau_inductor.codegen.float8 import FLOAT8
from flambeau_inductor.codegen.packed_operand import unpack
from flambeau_inductor.codegen.triton import reductions
from flambeau_inductor.codegen.triton.grouped_rows import (
    place_in_group,
    tile_count,
    tile_text,
)
from flambeau_inductor.codegen.triton.kernel import HEADER, KernelWriter, divides, product_of
from flambeau_inductor.codegen.triton.matmul_tiling import (
    DESCRIPTOR_BYTES,
    describe,
    described_stores,
)
from flambeau_inductor.codegen.triton.operand_tiles import (
    axes_of_values,
    interleaved,
    row_statements,
)
from flambeau_inductor.codegen.triton.ops import TRITON_TYPES, TritonOps
from flambeau_inductor.codegen.triton.tiling import Tiling
from flambeau_inductor.indexing.expressions import integer_text
from flambeau_inductor.ir import TILE, Constant, defined_name, tile_points
from flambeau_inductor.scalar_ops import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import sympy

    from flambeau_inductor.codegen.contraction import Operand
    from flambeau_inductor.codegen.triton.matmul_tiling import Description, MatmulTiling
    from flambeau_inductor.ir import Integer, Load, LoopKernel, TileReduce
    from flambeau_inductor.lowering.row_groups import RowGroups

PRECISE_STEP = 128
"""So many float8 products are summed before the sum is added to one in float32, as cuBLAS does."""


def write_matmul(kernel: LoopKernel, name: str, tiling: MatmulTiling) -> str:
    """The source text of a kernel that multiplies matrices."""
    return _MatmulWriter(kernel, name, tiling).source()


def matmul_constants(tiling: MatmulTiling) -> dict[str, int]:
    """The values of the function's constexpr parameters."""
    return {"XBLOCK": tiling.xblock, "RBLOCK": tiling.rblock, "KBLOCK": tiling.kblock,
            "DESCRIPTORS": int(tiling.descriptors)}  # fmt: skip


def matmul_grid(
    kernel: LoopKernel, tiling: MatmulTiling, dims: Mapping[str, int | str]
) -> tuple[int | str, ...]:
    """The number of programs, given the Dims that a launch passes for the kernel's sizes."""
    if tiling.programs:
        return (tiling.programs,)
    contraction = contraction_of(kernel)
    assert contraction is not None
    total = 1
    texts = []
    for axes, block in ((contraction.batch, 1), (contraction.rows, tiling.xblock),
                        (contraction.lanes, tiling.rblock)):  # fmt: skip
        points = product_of(axes)
        grouped = contraction.groups is not None and axes is contraction.rows
        if isinstance(points, int):
            total *= tile_count(points, block, contraction.groups if grouped else None)
        else:
            text = integer_text(points, lambda name: f"({dims[name]})")
            texts.append(tile_text(text, block, contraction.groups if grouped else None))
    return ("*".join([str(total), *texts]) if texts else total,)


def scratch_bytes(kernel: LoopKernel, tiling: MatmulTiling) -> int:
    """Scratch memory of one program: that of its tensor descriptors, if it has any."""
    contraction = contraction_of(kernel)
    assert contraction is not None
    stores = len(described_stores(kernel, contraction)) if tiling.described_stores else 0
    return (2 + stores) * DESCRIPTOR_BYTES if tiling.descriptors else 0


class _MatmulWriter(KernelWriter):
    """Writes one function. A tile mask is named after the index that it bounds."""

    def __init__(self, kernel: LoopKernel, name: str, tiling: MatmulTiling) -> None:
        super().__init__(kernel, name, Tiling(tiling.xblock, tiling.rblock))
        contraction = contraction_of(kernel)
        if contraction is None:
            raise ValueError(f"no matrix product: {name}")
        self.reduces_tiles = bool(points := tile_points(kernel.body))
        if points not in (0, tiling.rblock) or (points and contraction.lanes != kernel.outer[-1:]):
            raise ValueError(f"{name} reduces tiles of {points} lanes, not of {tiling.rblock}")
        self.matmul = tiling
        self.contraction = contraction
        self.inner_axes = kernel.inner
        self.stores = described_stores(kernel, contraction) if tiling.described_stores else {}
        self.row_points = product_of(contraction.rows)
        self.lane_points = product_of(contraction.lanes)
        self.depth_points = product_of(kernel.inner)
        self.before, self.after = row_statements(kernel, contraction)
        self.mask_of: dict[str, str] = {}
        for axes, points, block, mask in (
            (contraction.rows, self.row_points, tiling.xblock, "xmask"),
            (contraction.lanes, self.lane_points, tiling.rblock, "rmask"),
            (kernel.inner, self.depth_points, tiling.kblock, "kmask"),
        ):
            if not divides(block, points) or (mask == "xmask" and contraction.groups is not None):
                self.mask_of |= {axis.symbol.name: mask for axis in axes}
        self.axes_of = axes_of_values(kernel, contraction.groups)
        dtype = contraction.left.dtype
        self.float8 = FLOAT8[dtype].triton if dtype in FLOAT8_OPERANDS else ""
        """The type that factors are multiplied in, where memory is typed as bytes."""

    # What TritonOps asks

    @property
    def scalar_shape(self) -> str:
        """The shape of a tile of one value."""
        return "[1, 1]"

    def masks(self, index: sympy.Expr, dtype: torch.dtype) -> list[str]:
        """The tile masks an access needs: those of the axes that it varies along."""
        return self.masks_of({symbol.name for symbol in index.free_symbols})

    def value_masks(self, value: str) -> list[str]:
        """The tile masks of a value."""
        return self.masks_of({value})

    def masks_of(self, names: set[str]) -> list[str]:
        """The tile masks of axes, and of values."""
        axes = set().union(*(self.axes_of.get(name, {name}) for name in names))
        return sorted({self.mask_of[name] for name in axes if name in self.mask_of})

    def store(
        self, buffer: str, index: sympy.Expr, value: str, mode: str = "", mask: str | None = None
    ) -> None:
        """A store of a whole tile, also where the index has no axis: of one row, or one lane."""
        sides = ((self.row_points, self.matmul.xblock, "xmask"),
                 (self.lane_points, self.matmul.rblock, "rmask"))  # fmt: skip
        cut = {"xmask"} if self.contraction.groups is not None else set()
        masks = [name for points, block, name in sides if not divides(block, points) or name in cut]
        shape = "[XBLOCK, RBLOCK]"
        if TILE in index.free_symbols:
            shape, masks = "[XBLOCK, 1]", [name for name in masks if name == "xmask"]
        if buffer not in self.stores:
            self.store_tile(buffer, index, value, shape, masks, mode, mask)
            return
        self.line("if DESCRIPTORS:")
        with self.indented():
            place = "[row * XBLOCK, lane * RBLOCK]"
            self.line(f"{buffer}_matrix.store({place}, tl.broadcast_to({value}, {shape}))")
        self.line("else:")
        with self.indented():
            self.store_tile(buffer, index, value, shape, masks, mode, mask)

    def reduce_tile(self, statement: TileReduce, value: str, dtype: torch.dtype) -> str:
        """A TileReduce: reduce the tile's lanes."""
        fits = divides(self.matmul.rblock, self.lane_points)
        length = "RBLOCK"
        if not fits:
            length = f"tl.minimum({integer_text(self.lane_points)} - {TILE} * RBLOCK, RBLOCK)"
        row = replace(self.row(), fits=fits, length=length)
        return reductions.reduce_row(row, statement.kind, value, dtype, f"{statement.name}_row")

    # The function

    def source(self) -> str:
        """Header, helpers and the function."""
        tiling = self.matmul
        described = self.descriptions() if tiling.descriptors else None
        if described:
            self.line("if DESCRIPTORS:")
            with self.indented():
                for operand, description in described.items():
                    self.declare_descriptor(operand, description)
                for buffer, description in self.stores.items():
                    self.declare_store(buffer, description)
        tiles = self.tiles()
        if tiling.programs:
            self.line(
                f"for tile in tl.range(tl.program_id(0), {tiles}, {tiling.programs}, flatten=True):"
            )
            with self.indented():
                self.tile(described)
        else:
            self.line("tile = tl.program_id(0)")
            self.tile(described)
        arguments = [param.name for param in self.kernel.params]
        arguments += [str(size) for size in self.kernel.sizes]
        arguments += [f"{name}: tl.constexpr" for name in matmul_constants(tiling)]
        head = f"@triton.jit\ndef {self.name}({', '.join(arguments)}):"
        helpers = [text.strip("\n") + "\n" for text in self.helpers.values()]
        return "\n".join([HEADER, *helpers, head, *self.lines, ""])

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Lines one step deeper."""
        self.depth += 1
        yield
        self.depth -= 1

    def tiles(self) -> str:
        """The number of tiles."""
        tiling = self.matmul
        rows = self.count(self.row_points, tiling.xblock, self.contraction.groups)
        lanes = self.count(self.lane_points, tiling.rblock)
        batch = integer_text(product_of(self.contraction.batch))
        return f"({rows}) * ({lanes})" + (f" * ({batch})" if self.contraction.batch else "")

    def count(self, points: Integer, block: int, groups: RowGroups | None = None) -> str:
        """How many blocks cover some points, or the points of any groups."""
        if isinstance(points, int):
            return str(tile_count(points, block, groups))
        return tile_text(integer_text(points), block, groups)

    def tile(self, described: dict[str, Description] | None) -> None:
        """Everything for tile number `tile`."""
        contraction = self.contraction
        self.position()
        if contraction.groups is None:
            self.sums(described, Replay(TritonOps(self)))
            return
        self.line(f"if group < {contraction.groups.count}:")
        with self.indented():
            replay = Replay(TritonOps(self))
            value = contraction.groups.value
            self.define(value, "tl.full([1, 1], 0, tl.int64) + group")
            replay.values[value], replay.dtypes[value] = value, torch.int64
            self.sums(described, replay)

    def sums(self, described: dict[str, Description] | None, replay: Replay) -> None:
        """The loop over the inner axis, what comes before it, and what is done with its sums."""
        contraction, tiling = self.contraction, self.matmul
        dtype = contraction.reduce.dtype
        accumulator = contraction.reduce.name
        replay.run(self.before)
        self.line(f"{accumulator} = tl.zeros([XBLOCK, RBLOCK], {TRITON_TYPES[dtype]})")
        # The compiler makes the loop asynchronous as it stands; its bound is a constant if known.
        self.line(f"for start in range(0, {integer_text(self.depth_points)}, KBLOCK):")
        with self.indented():
            left = self.operand(replay, contraction.left, described, is_left=True)
            right = self.operand(replay, contraction.right, described, is_left=False)
            extra = ""
            if contraction.left.dtype is torch.float32:
                extra = f', input_precision="{"tf32" if tiling.tf32 else "ieee"}"'
            elif dtype is torch.int32:
                extra = ", out_dtype=tl.int32"
            elif contraction.left.dtype in FLOAT8_OPERANDS:
                if not tiling.rough:
                    # The units keep some 14 bits of a sum: it is added to a better one in time.
                    extra = f", max_num_imprecise_acc={min(PRECISE_STEP, tiling.kblock)}"
            self.line(f"{accumulator} = tl.dot({left}, {right}, {accumulator}{extra})")
        replay.values[accumulator] = accumulator
        replay.dtypes[accumulator] = dtype
        replay.run(self.after)

    def position(self) -> None:
        """Which rows, lanes and batch a tile has."""
        contraction, height = self.contraction, self.matmul.height
        across = self.count(self.lane_points, self.matmul.rblock)
        down = self.count(self.row_points, self.matmul.xblock, contraction.groups)
        place = "tile"
        if contraction.batch:
            self.line(f"place = tile % (({down}) * ({across}))")
            self.line(f"batch = tile // (({down}) * ({across}))")
            place = "place"
        self.line(f"band = {place} // ({height} * ({across})) * {height}")
        self.line(f"tall = tl.minimum(({down}) - band, {height})")
        self.line(f"row = band + {place} % ({height} * ({across})) % tall")
        self.line(f"lane = {place} % ({height} * ({across})) // tall")
        wide = ".to(tl.int64)" if self.wide else ""
        if self.reduces_tiles:
            self.line(f"{TILE} = tl.full([1, 1], lane, tl.int32){wide}")
        if contraction.groups is None:
            self.line(f"xindex = (row{wide} * XBLOCK + tl.arange(0, XBLOCK))[:, None]")
        else:
            for line in place_in_group(contraction.groups, integer_text(self.row_points)):
                self.line(line)
            self.line(f"xindex = (first{wide} + tl.arange(0, XBLOCK))[:, None]")
            self.line("xmask = xindex < behind")
        self.line(f"rindex = (lane{wide} * RBLOCK + tl.arange(0, RBLOCK))[None, :]")
        if contraction.groups is None and not divides(self.matmul.xblock, self.row_points):
            self.line(f"xmask = xindex < {integer_text(self.row_points)}")
        if not divides(self.matmul.rblock, self.lane_points):
            self.line(f"rmask = rindex < {integer_text(self.lane_points)}")
        self.unravel(contraction.rows, "xindex")
        self.unravel(contraction.lanes, "rindex")
        if contraction.batch:
            self.line(
                f"bindex = tl.full([1, 1], batch{wide}, {'tl.int64' if self.wide else 'tl.int32'})"
            )
            self.unravel(contraction.batch, "bindex")

    # Operands

    def operand(
        self, replay: Replay, operand: Operand, described: dict[str, Description] | None, *,
        is_left: bool,
    ) -> str:  # fmt: skip
        """The tile of an operand at `start`; returns its name. `replay` knows what is the same for
        all of `start`.
        """
        if described:
            self.line("if DESCRIPTORS:")
            with self.indented():
                self.read_described(operand, described[operand.value], is_left)
            self.line("else:")
            with self.indented():
                self.read(replay, operand, is_left)
        else:
            self.read(replay, operand, is_left)
        return operand.value

    def read(self, replay: Replay, operand: Operand, is_left: bool) -> None:
        """Compute an operand's tile by its statements."""
        body = tuple(each for each in operand.body if defined_name(each) not in replay.values)
        value, load, packed = operand.value, operand.load, None
        if load is None and len(self.inner_axes) == 1:
            with_constants = tuple(s for s in operand.body if s in body or isinstance(s, Constant))
            packed = unpack(with_constants, value, self.inner_axes[0], self.matmul.kblock)
        period = 1 if packed is None else packed.period
        part = "" if period == 1 else f" // {period}"
        lanes = "[None, :]" if is_left else "[:, None]"
        wide = ".to(tl.int64)" if self.wide else ""
        self.line(f"kindex = (start{part} + tl.arange(0, KBLOCK{part})){lanes}{wide}")
        fits = divides(self.matmul.kblock, self.depth_points)
        if not fits:
            self.line(f"kmask = kindex < {integer_text(self.depth_points)}{part}")
        self.unravel(self.inner_axes, "kindex")
        if load is not None and self.float8:
            self.read_float8(load)
            body = ()
        own = Replay(TritonOps(self))
        own.values, own.dtypes = dict(replay.values), dict(replay.dtypes)
        values: tuple[str, ...] = (value,)
        if packed is None:
            own.run(body)
        else:
            for name, points in packed.shared.items():
                self.line(f"{name} = tl.full([1, 1], start // {points}, tl.int32)")
            own.run(packed.body)
            values = packed.values
        for each in values:
            if load is None and not fits:
                # A computed operand need not be 0 where its loads are.
                self.line(f"{each} = tl.where(kmask, {each}, tl.zeros([1, 1], {each}.dtype))")
        shape = f"[XBLOCK, KBLOCK{part}]" if is_left else f"[KBLOCK{part}, RBLOCK]"
        axes = self.contraction.rows if is_left else self.contraction.lanes
        if load is None or not axes:
            spread = [f"tl.broadcast_to({each}, {shape})" for each in values]
            self.line(f"{value} = {interleaved(spread, is_left)}")
        if load is None and self.float8:
            self.line(f"{value} = {value}.to({self.float8}, bitcast=True)")

    def read_float8(self, load: Load) -> None:
        """Read a factor's tile in its own type, without a conversion that would keep it from the
        shared memory that the matrix units read.
        """
        masks = self.masks(load.index, load.dtype)
        condition = f", {' & '.join(masks)}, other=0.0" if masks else ""
        place = f"{self.typed(load.buffer)} + ({self.index_text(load.index)})"
        self.line(f"{load.name} = tl.load({place}{condition})")

    def typed(self, buffer: str) -> str:
        """A factor's pointer in the type that it is multiplied in."""
        return f"{buffer}.to(tl.pointer_type({self.float8}))" if self.float8 else buffer

    def descriptions(self) -> dict[str, Description]:
        """The operands as tensor descriptors see them."""
        result = {}
        for operand, axes in ((self.contraction.left, self.contraction.rows),
                              (self.contraction.right, self.contraction.lanes)):  # fmt: skip
            description = describe(operand, axes, self.inner_axes)
            if description is None:
                raise ValueError(f"{self.name}: {operand.value} has no tensor descriptor")
            result[operand.value] = description
        return result

    def declare_descriptor(self, name: str, description: Description) -> None:
        """Make the tensor descriptor of an operand."""
        is_left = name == self.contraction.left.value
        operand = self.contraction.left if is_left else self.contraction.right
        load = operand.load
        assert load is not None
        points, block = (self.row_points, "XBLOCK") if is_left else (self.lane_points, "RBLOCK")
        shape, blocks = [str(points), str(self.depth_points)], [block, "KBLOCK"]
        if description.inner_is_slow:
            shape.reverse()
            blocks.reverse()
        base = self.typed(load.buffer) + (f" + {description.offset}" if description.offset else "")
        self.line(
            f"{name}_matrix = tl.make_tensor_descriptor({base}, [{', '.join(shape)}], "
            f"[{description.stride}, 1], [{', '.join(blocks)}])"
        )

    def declare_store(self, buffer: str, description: Description) -> None:
        """Make the tensor descriptor of a result."""
        base = buffer + (f" + {description.offset}" if description.offset else "")
        self.line(
            f"{buffer}_matrix = tl.make_tensor_descriptor({base}, [{self.row_points}, "
            f"{self.lane_points}], [{description.stride}, 1], [XBLOCK, RBLOCK])"
        )

    def read_described(self, operand: Operand, description: Description, is_left: bool) -> None:
        """Read an operand's tile through its descriptor."""
        place = ["row * XBLOCK" if is_left else "lane * RBLOCK", "start"]
        if description.inner_is_slow:
            place.reverse()
        # The left tile is [rows, inner], the right one [inner, lanes].
        turned = description.inner_is_slow if is_left else not description.inner_is_slow
        read = f"{operand.value}_matrix.load([{', '.join(place)}])"
        self.line(f"{operand.value} = {read}{'.T' if turned else ''}")
