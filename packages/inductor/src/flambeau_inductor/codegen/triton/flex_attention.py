"""Attention as one Triton function: an online softmax over blocks of keys, and its gradients.

    forward, a block of queries:             for each block of keys:
                                                 s = tl.dot(q, k^T);  p = exp2(changed(s) - most)
                                                 accumulator = accumulator * shrink + tl.dot(p, v)
    query_gradient, a block of queries:          ds = gradient(p * (tl.dot(dout, v^T) - delta))
                                                 dq += tl.dot(ds, k)
    key_value_gradients, a block of keys:    for each block of queries of each head that reads it:
                                                 dv += tl.dot(p^T, dout);  dk += tl.dot(ds^T, q)

What becomes of a score is printed by `TritonOps`, as in any kernel. A tile of scores is
[queries, keys]; for the gradients of keys and values it is [keys, queries], so that no tile is
transposed between two products. Blocks that a BlockMask calls partial are masked, full ones are
not, others are skipped. Statements that do not vary along the loop are in front of it.

Source of the method: Dao, "FlashAttention-2", 2023.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.attention import (
    AXES,
    GRADIENTS,
    LONGEST,
    SCORES,
)
from flambeau_inductor.attention_options import FORWARD, KEY_VALUE_GRADIENTS, QUERY_GRADIENT
from flambeau_inductor.codegen.triton.attention_tiling import fits, padded
from flambeau_inductor.codegen.triton.kernel import HEADER
from flambeau_inductor.codegen.triton.ops import TRITON_TYPES, TritonOps
from flambeau_inductor.codegen.triton.source_writer import SourceWriter
from flambeau_inductor.indexing.expressions import evaluate_expr, free_names, integer_text
from flambeau_inductor.ir import CheckIndex, Constant, Load, index_of, operands
from flambeau_inductor.scalar_ops import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flambeau_inductor.attention import Attention, AttentionKernel, Blocks, Scatter
    from flambeau_inductor.codegen.triton.attention_tiling import AttentionTiling
    from flambeau_inductor.ir import Body, Integer, Statement

LOG2_E = math.log2(math.e)
LOWEST = torch.finfo(torch.float32).min


def attention_grid(
    kernel: AttentionKernel, tiling: AttentionTiling, dims: Mapping[str, int | str]
) -> tuple[int | str, ...]:
    """The number of programs, given the Dims that a launch passes for the kernel's sizes."""
    one = kernel.attention
    total: list[int | str] = []
    if one.form == KEY_VALUE_GRADIENTS:
        parts: list[tuple[Integer, int]] = [
            (one.keys, tiling.keys), (one.heads, one.groups), (one.batch, 1)
        ]  # fmt: skip
    else:
        parts = [(one.queries, tiling.queries), (one.heads, 1), (one.batch, 1)]
    total.append(one.parts)
    for points, block in parts:
        if isinstance(points, int):
            total.append(-(-points // block))
        else:
            text = integer_text(points, lambda name: f"({dims[name]})")
            total.append(f"(({text} + {block - 1}) // {block})")
    if all(isinstance(part, int) for part in total):
        return (math.prod(total),)  # type: ignore[arg-type]
    return ("*".join(map(str, total)),)


def write_attention(kernel: AttentionKernel, name: str, tiling: AttentionTiling) -> str:
    """The source text of a kernel."""
    return _AttentionWriter(kernel, name, tiling).source()


class _AttentionWriter(SourceWriter):
    """Writes one function; `TritonOps` calls back for masks, pointers and values."""

    scalar_shape = "[1, 1]"

    def __init__(self, kernel: AttentionKernel, name: str, tiling: AttentionTiling) -> None:
        super().__init__({param.name: param.dtype for param in kernel.params})
        self.kernel = kernel
        self.name = name
        self.tiling = tiling
        self.one: Attention = kernel.attention
        self.size_names = {symbol.name for symbol in kernel.sizes}
        self.roles = {role for role, _ in self.one.results}
        self.has_slope = self.one.gradient is not None or bool(self.one.scatters)
        self.turned = self.one.form == KEY_VALUE_GRADIENTS
        self.queries_fit = fits(tiling.queries, self.one.queries)
        self.keys_fit = fits(tiling.keys, self.one.keys)
        if (blocks := self.one.blocks) is not None:
            # The tiles of the last block of a mask may lie behind the last point.
            if self.turned:
                self.queries_fit &= fits(blocks.queries, self.one.queries)
            else:
                self.keys_fit &= fits(blocks.keys, self.one.keys)
        self.axes_of = _axes_of(self.one.body)
        self.wide = _needs_64_bits(self.one)
        self.far = _has_far_rows(self.one)
        self.tile_shape = (
            f"[{tiling.keys}, {tiling.queries}]" if self.turned
            else f"[{tiling.queries}, {tiling.keys}]"
        )  # fmt: skip
        self.constants = {s.name: float(s.value) for s in self.one.body if isinstance(s, Constant)}
        self.replay = Replay(TritonOps(self))
        self.bodies = _split(self.one, self.axes_of, self.turned)

    # What TritonOps asks

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """Lines one step deeper, under a head."""
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def index_name(self, name: str) -> str:
        """A symbol of an index."""
        return name

    def masks(self, index: sympy.Expr, dtype: torch.dtype) -> list[str]:
        """The masks of tiles that an access needs: those of the axes that it varies along."""
        axes = set().union(*(self.axes_of.get(name, {name}) for name in free_names(index)))
        return self.masks_of(axes)

    def masks_of(self, axes: set[str]) -> list[str]:
        """The masks of tiles along some axes."""
        masks = ["xmask"] if "i2" in axes and not self.queries_fit else []
        return masks + (["rmask"] if "r0" in axes and not self.keys_fit else [])

    def value_masks(self, value: str) -> list[str]:
        """The masks of tiles of a value."""
        return self.masks_of(self.axes_of.get(value, set()))

    def pointer(self, buffer: str, index: sympy.Expr) -> str:
        """The tile of addresses of an access."""
        if not free_names(index) - self.size_names:
            return f"{buffer} + tl.full([1, 1], {integer_text(index)}, tl.int64)"
        return f"{buffer} + ({integer_text(index, self.index_name)})"

    def define(self, name: str, value: str) -> str:
        """A value; returns its name."""
        self.line(f"{name} = {value}")
        return name

    def store(self, *_: object, **__: object) -> None:
        """A body stores nothing."""
        raise ValueError(f"{self.name}: a store between two products")

    # The function

    def source(self) -> str:
        """Header, helpers and the function."""
        write = {
            FORWARD: self.forward,
            QUERY_GRADIENT: self.query_gradient,
            KEY_VALUE_GRADIENTS: self.key_value_gradients,
        }
        write[self.one.form]()
        arguments = [param.name for param in self.kernel.params]
        arguments += [size.name for size in self.kernel.sizes]
        head = f"@triton.jit\ndef {self.name}({', '.join(arguments)}):"
        helpers = [text.strip("\n") + "\n" for text in self.helpers.values()]
        return "\n".join([HEADER, *helpers, head, *self.lines, ""])

    def text(self, size: Integer) -> str:
        """A size in Triton."""
        return integer_text(size)

    def place(self) -> None:
        """Which block, head and batch a program has."""
        one, tiling = self.one, self.tiling
        if self.turned:
            points, block, heads = one.keys, tiling.keys, one.heads // one.groups
        else:
            points, block, heads = one.queries, tiling.queries, one.heads
        count = (
            str(-(-points // block)) if isinstance(points, int)
            else f"(({self.text(points)} + {block - 1}) // {block})"
        )  # fmt: skip
        self.line("program = tl.program_id(0)")
        if one.parts > 1:
            self.line(f"part = (program % {one.parts}).to(tl.int64)")
            self.line(f"program = program // {one.parts}")
        self.line(f"pair = program // {count}")
        self.line(f"block = program % {count}")
        self.line(f"batch = (pair // ({self.text(heads)})).to(tl.int64)")
        self.line(f"head = (pair % ({self.text(heads)})).to(tl.int64)")
        integer = ".to(tl.int64)" if self.wide else ".to(tl.int32)"
        self.line(f"i0 = (tl.full([1, 1], 0, tl.int32) + batch){integer}")
        if not self.turned:
            self.line(f"i1 = (tl.full([1, 1], 0, tl.int32) + head){integer}")
        widths = {"width": one.width, "depth": one.value_width}
        for name, width in widths.items():
            self.line(f"{name} = tl.arange(0, {padded(width)})")

    def base(self, role: str, head: str, name: str) -> None:
        """The address of a head of a tensor."""
        operand = self.one.operand(role)
        terms = [operand.buffer]
        if self.one.packed and role not in ("key", "value"):
            head = f"({head} * {int(self.one.queries) // self.one.packed})"
        for position, stride in (("batch", operand.strides[0]), (head, operand.strides[1])):
            if stride != 0:
                terms.append(f"{position} * ({self.text(stride)})")
        if operand.part_stride != 0:
            terms.append(f"part * ({self.text(operand.part_stride)})")
        if operand.offset != 0:
            terms.append(f"({self.text(operand.offset)})")
        self.line(f"{name} = {' + '.join(terms)}")

    def tile(self, role: str, base: str, points: str, column: str, turned: bool) -> str:
        """A load of rows `points` ("x" or "r") of a head, whole rows or transposed."""
        operand = self.one.operand(role)
        address, mask = self.address(operand, base, points, column, turned)
        condition = f", {mask}, other=0" if mask else ""
        return f"tl.load({address}{condition})"

    def address(
        self, operand: object, base: str, points: str, column: str, turned: bool
    ) -> tuple[str, str]:
        """The addresses of a tile, and its mask; `column` "width" or "depth"."""
        one = self.one
        strides = operand.strides  # type: ignore[attr-defined]
        fit = self.queries_fit if points == "x" else self.keys_fit
        row, side = ("[None, :]", "[:, None]") if turned else ("[:, None]", "[None, :]")
        text = f"{base} + {self.row(strides, points, row)}"
        inside = points == "x"
        masks = (
            [] if fit else [f"({points} < {self.text(one.queries if inside else one.keys)}){row}"]
        )
        assert column is not None
        text += f" + {column}{side}"
        if strides[3] != 1:
            text += f" * ({self.text(strides[3])})"
        width = one.width if column == "width" else one.value_width
        if padded(width) != width:
            masks.append(f"({column} < {width}){side}")
        return text, " & ".join(masks)

    def row(self, strides: Sequence[sympy.Expr], points: str, side: str = "") -> str:
        """The offsets of rows of a tensor: of one head, or of all that share keys."""
        one = self.one
        if points == "x" and one.packed > 1:
            return (
                f"(x // {one.packed}){side} * ({self.text(strides[1])})"
                f" + (x % {one.packed}){side} * ({self.text(strides[2])})"
            )
        return f"{points}{side} * ({self.text(strides[1 if points == 'x' and one.packed else 2])})"

    def precision(self) -> str:
        """How a product of float32 rounds."""
        if self.one.operand("query").dtype is not torch.float32:
            return ""
        chosen = self.one.options.precision or ("tf32" if self.one.tf32 else "tf32x3")
        return f', input_precision="{chosen}"'

    def points(self, name: str, start: str) -> None:
        """The positions of a block: `x` of queries or `r` of keys, and the tile of the body."""
        one, tiling = self.one, self.tiling
        block = tiling.queries if name == "x" else tiling.keys
        index = f"{start} + tl.arange(0, {block})"
        self.line(f"{name} = ({index}).to(tl.int64)" if self.far else f"{name} = {index}")
        side = "[:, None]" if (name == "x") != self.turned else "[None, :]"
        axis, mask, fit, size = (
            ("i2", "xmask", self.queries_fit, one.queries) if name == "x"
            else ("r0", "rmask", self.keys_fit, one.keys)
        )  # fmt: skip
        self.line(f"{axis} = {name}{side}" + (".to(tl.int64)" if self.wide else ""))
        if not fit:
            self.line(f"{mask} = {axis} < {self.text(size)}")

    # Loops over blocks

    def over_blocks(self, head: str, body: object) -> None:
        """`body(start, masked)` for each block: the partial ones, then the full ones."""
        one, tiling = self.one, self.tiling
        blocks = one.blocks
        own, step, points = (
            (tiling.keys, tiling.queries, one.queries) if self.turned
            else (tiling.queries, tiling.keys, one.keys)
        )  # fmt: skip
        if blocks is None and one.parts > 1:
            self.line(f"count = ({self.text(points)} + {step - 1}) // {step}")
            with self.loop(self.steps("count")):
                self.line(f"start = step * {step}")
                body("start", True)  # type: ignore[operator]
            return
        if blocks is None:
            with self.loop(f"for start in range(0, {self.text(points)}, {step}):"):
                body("start", True)  # type: ignore[operator]
            return
        mine, other = (
            (blocks.keys, blocks.queries) if self.turned else (blocks.queries, blocks.keys)
        )
        if one.packed:
            self.line("sparse = 0")  # where all queries are
        else:
            self.line(f"sparse = block // {mine // own}" if mine != own else "sparse = block")
        lists = [(blocks.counts, blocks.indices, True)]
        if blocks.full_counts is not None and blocks.full_indices is not None:
            lists.append((blocks.full_counts, blocks.full_indices, False))
        for counts, indices, masked in lists:
            self.line(f"count = tl.load({self.entry(counts, blocks, head)})")
            self.line(f"entries = {self.entry(indices, blocks, head)}")
            parts = other // step
            last = indices.strides[3]
            limit = f"count * {parts}" if parts > 1 else "count"
            contiguous = one.options.blocks_are_contiguous
            if contiguous:
                self.line("first_entry = tl.load(entries)")
            with self.loop(self.steps(limit)):
                number = f"step // {parts}" if parts > 1 else "step"
                stride = "" if last == 1 else f" * ({self.text(last)})"
                if contiguous:
                    self.line(f"entry = first_entry + {number}")
                else:
                    self.line(f"entry = tl.load(entries + ({number}){stride})")
                inside = f" + step % {parts} * {step}" if parts > 1 else ""
                self.line(f"start = entry * {other}{inside}")
                body("start", masked)  # type: ignore[operator]

    def steps(self, count: str) -> str:
        """The head of a loop over steps, or over this part of them."""
        parts = self.one.parts
        if parts == 1:
            return f"for step in range(0, {count}):"
        self.line(f"first = ({count} * part // {parts}).to(tl.int32)")
        self.line(f"behind = ({count} * (part + 1) // {parts}).to(tl.int32)")
        return "for step in range(first, behind):"

    def entry(self, operand: object, blocks: Blocks, head: str) -> str:
        """The address of the entry of this program's row of blocks."""
        strides = operand.strides  # type: ignore[attr-defined]
        terms = [operand.buffer]  # type: ignore[attr-defined]
        for position, size, stride in (
            ("batch", blocks.batches, strides[0]),
            (head, blocks.heads, strides[1]),
        ):
            if size != 1:
                terms.append(f"{position} * ({self.text(stride)})")
        terms.append(f"sparse * ({self.text(strides[2])})")
        if operand.offset != 0:  # type: ignore[attr-defined]
            terms.append(f"({self.text(operand.offset)})")  # type: ignore[attr-defined]
        return " + ".join(terms)

    # What becomes of scores

    @property
    def is_plain(self) -> bool:
        """Whether no function changes scores, and the scale may be applied behind a maximum."""
        return self.changes_nothing and self.one.scale > 0

    @property
    def changes_nothing(self) -> bool:
        one = self.one
        return any(
            isinstance(s, Load) and s.buffer == SCORES and s.name == one.changed for s in one.body
        )

    @property
    def is_prescaled(self) -> bool:
        """Whether queries are scaled in front of the product."""
        return self.one.options.prescaled and not self.is_plain

    def scaled_query(self) -> str:
        """The factor of the product with keys."""
        if not self.is_prescaled:
            return "q"
        # In float32, since a number takes the dtype of the tensor beside it.
        return f"(q.to(tl.float32) * {self.one.scale!r}).to(q.dtype)"

    @property
    def factor(self) -> float:
        """What a score is multiplied by in the exponent of two."""
        return self.one.scale * LOG2_E if self.is_plain else LOG2_E

    def run(self, body: Body) -> None:
        """Print statements; the two that are no memory are tiles that stand already."""
        for statement in body:
            if isinstance(statement, Load) and statement.buffer in (SCORES, GRADIENTS):
                name = "scaled" if statement.buffer == SCORES else "slope"
                self.replay.values[statement.name] = name
                self.replay.dtypes[statement.name] = statement.dtype
            else:
                self.replay.step(statement)

    def change(self, masked: bool) -> str:
        """`score`, whose multiple by `factor` is the exponent, from the product `raw`; the
        condition under which it is visible.
        """
        one = self.one
        behind = self.bodies.gradient + self.bodies.scatters
        uses_raw = self.is_plain and not _reads_scores(behind)
        if not uses_raw:
            self.line("scaled = raw" + ("" if self.is_prescaled else f" * {one.scale!r}"))
        self.run(self.bodies.changed)
        if self.is_plain:
            self.line("score = raw")
        else:
            self.line(
                f"score = tl.broadcast_to({self.replay.values[one.changed]}, {self.tile_shape})"
            )
        conditions = []
        if masked and one.visible is not None:
            self.run(self.bodies.visible)
            conditions.append(self.replay.values[one.visible])
        looped_fit = self.queries_fit if self.turned else self.keys_fit
        if not looped_fit:
            conditions.append("xmask" if self.turned else "rmask")
        condition = " & ".join(conditions)
        if condition:
            self.line(f'score = tl.where({condition}, score, float("-inf"))')
        return condition

    def hoist(self) -> None:
        """The statements that do not vary along the loop."""
        self.run(self.bodies.invariant)

    # Forward

    def forward(self) -> None:
        """The attended values; the log-sum-exp and maximum of each row if they are asked for."""
        one, tiling = self.one, self.tiling
        self.place()
        group = f"(head // {one.groups})" if one.groups > 1 else "head"
        self.points("x", f"block * {tiling.queries}")
        self.base("query", "head", "query")
        self.base("key", group, "key")
        self.base("value", group, "value")
        self.line(f"q = {self.tile('query', 'query', 'x', 'width', False)}")
        if self.is_prescaled:
            self.line(f"q = {self.scaled_query()}")
        # Finite, so that a row of which nothing is visible yet has a maximum to subtract.
        self.line(f"most = tl.full([{tiling.queries}], {LOWEST}, tl.float32)")
        self.line(f"total = tl.zeros([{tiling.queries}], tl.float32)")
        shape = f"[{tiling.queries}, {padded(one.value_width)}]"
        self.line(f"accumulator = tl.zeros({shape}, tl.float32)")
        self.hoist()
        self.over_blocks("head", self.forward_step)
        if not one.options.rows_are_safe or one.parts > 1:
            self.line('most = tl.where(total == 0, float("-inf"), most)')
            self.line("total = tl.where(total == 0, 1.0, total)")
        self.line("result = accumulator / total[:, None]")
        self.write("out", "result", "x", "depth", "head")
        if "lse" in self.roles:
            self.write_row("lse", "most + tl.log2(total)")
        if "most" in self.roles:
            self.write_row("most", "most")

    def forward_step(self, start: str, masked: bool) -> None:
        """One block of keys."""
        self.points("r", start)
        self.line(f"k = {self.tile('key', 'key', 'r', 'width', True)}")
        self.line(f"raw = tl.dot(q, k{self.precision()})")
        self.change(masked)
        factor = repr(self.factor)
        self.line(f"higher = tl.maximum(most, tl.max(score, 1) * {factor})")
        self.line(f"p = tl.exp2(score * {factor} - higher[:, None])")
        self.line("shrink = tl.exp2(most - higher)")
        self.line("total = total * shrink + tl.sum(p, 1)")
        self.line("accumulator = accumulator * shrink[:, None]")
        self.line(f"v = {self.tile('value', 'value', 'r', 'depth', False)}")
        self.line(f"accumulator = tl.dot(p.to(v.dtype), v, accumulator{self.precision()})")
        self.line("most = higher")

    def write(self, role: str, value: str, points: str, column: str, head: str) -> None:
        """Store a tile of rows."""
        operand = dict(self.one.results)[role]
        self.base(role, head, f"{role}_base")
        address, mask = self.address(operand, f"{role}_base", points, column, False)
        condition = f", {mask}" if mask else ""
        kind = TRITON_TYPES[operand.dtype]
        self.line(f"tl.store({address}, {value}.to({kind}){condition})")

    def write_row(self, role: str, value: str) -> None:
        """Store a number for each query."""
        operand = dict(self.one.results)[role]
        self.base(role, "head", f"{role}_base")
        mask = "" if self.queries_fit else f", x < {self.text(self.one.queries)}"
        self.line(f"tl.store({role}_base + {self.row(operand.strides, 'x')}, {value}{mask})")

    # Gradients

    def read_row(self, role: str, other: str) -> str:
        """A number for each query."""
        row = self.row(self.one.operand(role).strides, "x")
        mask = "" if self.queries_fit else f", x < {self.text(self.one.queries)}, other={other}"
        return f"tl.load({role}_base + {row}{mask})"

    def rows(self) -> None:
        """The log-sum-exp of each query, and what is subtracted from the gradient of a weight."""
        self.line(f"lse = {self.read_row('lse', '0.0')}")
        if not self.one.options.rows_are_safe:
            self.line('lse = tl.where(lse == float("-inf"), 0.0, lse)')
        if self.has_slope:
            self.line(f"delta = {self.read_row('delta', '0.0')}")

    def slope(self, masked: bool) -> None:
        """`p`, the weights, and `slope`, the gradients of changed scores from those of weights."""
        side = "[None, :]" if self.turned else "[:, None]"
        conditions = self.change(masked)
        self.line(f"p = tl.exp2(score * {self.factor!r} - lse{side})")
        if self.turned:
            if "dv" in self.roles:
                self.line(f"dv = tl.dot(p.to(dout.dtype), dout, dv{self.precision()})")
            if not self.has_slope:
                return
            self.line(f"change = tl.dot(v, tl.trans(dout){self.precision()})")
        else:
            self.line(f"change = tl.dot(dout, v{self.precision()})")
        self.line(f"slope = p * (change - delta{side})")
        self.run(self.bodies.gradient)
        self.run(self.bodies.scatters)
        for number in range(len(self.one.scatters)):
            self.scatter(number, conditions)
        if self.one.gradient is None:
            return
        name = self.replay.values[self.one.gradient]
        if name != "slope":
            self.line(f"slope = tl.broadcast_to({name}, {self.tile_shape})")
            if conditions:
                # A function may have no finite slope where nothing is visible.
                self.line(f"slope = tl.where({conditions}, slope, 0.0)")

    def query_gradient(self) -> None:
        """dq for a block of queries."""
        one, tiling = self.one, self.tiling
        self.place()
        group = f"(head // {one.groups})" if one.groups > 1 else "head"
        self.points("x", f"block * {tiling.queries}")
        for role, head in (("query", "head"), ("key", group), ("value", group), ("dout", "head")):
            self.base(role, head, f"{role}_base")
        for role in ("lse", "delta"):
            self.base(role, "head", f"{role}_base")
        self.line(f"q = {self.tile('query', 'query_base', 'x', 'width', False)}")
        if self.is_prescaled:
            self.line(f"q = {self.scaled_query()}")
        self.line(f"dout = {self.tile('dout', 'dout_base', 'x', 'depth', False)}")
        self.rows()
        if "dq" in self.roles:
            self.line(f"dq = tl.zeros([{tiling.queries}, {padded(one.width)}], tl.float32)")
        self.hoist()
        for number, one_sum in enumerate(one.scatters):
            if "r0" not in self.axes_of_place(one_sum):
                self.line(f"sum{number} = tl.zeros([{tiling.queries}], tl.float32)")
        self.over_blocks("head", self.query_step)
        for number in range(len(one.scatters)):
            self.scatter_rows(number)
        if "dq" not in self.roles:
            return
        self.write("dq", f"(dq * {one.scale!r})", "x", "width", "head")

    def query_step(self, start: str, masked: bool) -> None:
        """One block of keys."""
        self.points("r", start)
        self.line(f"k = {self.tile('key', 'key_base', 'r', 'width', True)}")
        self.line(f"raw = tl.dot(q, k{self.precision()})")
        self.line(f"v = {self.tile('value', 'value_base', 'r', 'depth', True)}")
        self.slope(masked)
        if "dq" in self.roles:
            self.line(f"dq = tl.dot(slope.to(k.dtype), tl.trans(k), dq{self.precision()})")

    # Sums of scores

    def axes_of_place(self, scatter: Scatter) -> set[str]:
        """The axes of a tile that the place of an element varies along."""
        return self.axes_of.get(scatter.place, set()) & {"i2", "r0"}

    def scatter(self, number: int, conditions: str) -> None:
        """Add a tile of elements up as far as they have one place; over the loop, too, if it does
        not vary along keys.
        """
        one = self.one.scatters[number]
        self.line(f"part = tl.broadcast_to({self.replay.values[one.value]}, {self.tile_shape})")
        masks = self.masks_of({"i2", "r0"})
        condition = " & ".join([*masks, *([conditions] if conditions else [])])
        if condition:
            self.line(f"part = tl.where({condition}, part, 0.0)")
        axes = self.axes_of_place(one)
        if "r0" not in axes:
            self.line(f"sum{number} += tl.sum(part, 1)")
        elif "i2" not in axes:
            mask = "" if self.keys_fit else "rmask"
            self.add(one, "tl.sum(part, 0)[None, :]", f"[1, {self.tiling.keys}]", mask)
        else:
            self.scatter_tile(number, condition)

    def scatter_tile(self, number: int, condition: str) -> None:
        """Add a tile whose elements may go to different places. Those that go to its first and to
        its last place are summed before: where distances are clamped to buckets, most do.
        """
        one = self.one.scatters[number]
        self.line(f"places = tl.broadcast_to({self.replay.values[one.place]}, {self.tile_shape})")
        for end, reduce, never in (("first", "min", 2**31 - 1), ("last", "max", -1)):
            seen = f"tl.where({condition}, places, {never})" if condition else "places"
            self.line(f"{end} = tl.{reduce}(tl.{reduce}({seen}, 1), 0)")
        for end, guard in (("first", "if first <= last:"), ("last", "if first < last:")):
            with self.loop(guard):
                together = f"tl.sum(tl.sum(tl.where(places == {end}, part, 0.0), 1), 0)"
                self.line(f'tl.atomic_add({self.into(one)} + {end}, {together}, sem="relaxed")')
        with self.loop("if first < last - 1:"):  # where all is masked, first + 1 would overflow
            between = "(places > first) & (places < last)"
            self.add(one, "part", self.tile_shape, " & ".join(filter(None, (between, condition))))

    def scatter_rows(self, number: int) -> None:
        """Add what has been added up over all keys."""
        one = self.one.scatters[number]
        axes = self.axes_of_place(one)
        if "r0" in axes:
            return
        if "i2" in axes:
            mask = "" if self.queries_fit else "xmask"
            self.add(one, f"sum{number}[:, None]", f"[{self.tiling.queries}, 1]", mask)
        else:
            self.add(one, f"tl.sum(sum{number}, 0)", "[1, 1]", "")

    def into(self, one: Scatter) -> str:
        """The address of the first element of what is added to."""
        offset = "" if one.into.offset == 0 else f" + ({self.text(one.into.offset)})"
        return f"{one.into.buffer}{offset}"

    def add(self, one: Scatter, value: str, shape: str, mask: str) -> None:
        """Atomic additions of a tile."""
        place = self.replay.values[one.place]
        address = f"{self.into(one)} + tl.broadcast_to({place}, {shape})"
        condition = f", {mask}" if mask else ""
        value = f"tl.broadcast_to({value}, {shape})"
        self.line(f'tl.atomic_add({address}, {value}{condition}, sem="relaxed")')

    def key_value_gradients(self) -> None:
        """dk, dv or both for a block of keys, summed over the heads of queries that share it."""
        one, tiling = self.one, self.tiling
        self.place()
        self.points("r", f"block * {tiling.keys}")
        for role in ("key", "value"):
            self.base(role, "head", f"{role}_base")
        self.line(f"k = {self.tile('key', 'key_base', 'r', 'width', False)}")
        if self.has_slope:
            self.line(f"v = {self.tile('value', 'value_base', 'r', 'depth', False)}")
            self.line(f"dk = tl.zeros([{tiling.keys}, {padded(one.width)}], tl.float32)")
        if "dv" in self.roles:
            self.line(f"dv = tl.zeros([{tiling.keys}, {padded(one.value_width)}], tl.float32)")
        if one.groups > 1:
            with self.loop(f"for member in range(0, {one.groups}):"):
                self.line(f"reader = head * {one.groups} + member")
                self.key_value_loops("reader")
        else:
            self.key_value_loops("head")
        if self.has_slope:
            self.write("dk", f"(dk * {one.scale!r})", "r", "width", "head")
        if "dv" in self.roles:
            self.write("dv", "dv", "r", "depth", "head")

    def key_value_loops(self, head: str) -> None:
        """All blocks of queries of one head."""
        integer = ".to(tl.int64)" if self.wide else ".to(tl.int32)"
        self.line(f"i1 = (tl.full([1, 1], 0, tl.int32) + {head}){integer}")
        for role in ("query", "dout", "lse", *(("delta",) if self.has_slope else ())):
            self.base(role, head, f"{role}_base")
        self.hoist()
        self.over_blocks(head, self.key_value_step)

    def key_value_step(self, start: str, masked: bool) -> None:
        """One block of queries."""
        self.points("x", start)
        self.line(f"q = {self.tile('query', 'query_base', 'x', 'width', False)}")
        self.line(f"raw = tl.dot(k, tl.trans({self.scaled_query()}){self.precision()})")
        self.rows()
        self.line(f"dout = {self.tile('dout', 'dout_base', 'x', 'depth', False)}")
        self.slope(masked)
        if self.has_slope:
            self.line(f"dk = tl.dot(slope.to(q.dtype), q, dk{self.precision()})")


# The body in parts


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Statements that do not vary along the loop; those for `changed`, `visible` and `gradient`."""

    invariant: Body
    changed: Body
    visible: Body
    gradient: Body
    scatters: Body


def _axes_of(body: Body) -> dict[str, set[str]]:
    """The axes that each value varies along."""
    known = {axis.name: {axis.name} for axis in AXES}
    for statement in body:
        if not hasattr(statement, "name"):
            continue
        if isinstance(statement, Load) and statement.buffer in (SCORES, GRADIENTS):
            # Of one query, too, whose axis no index names.
            known[statement.name] = {axis.name for axis in AXES}
            continue
        index = index_of(statement)
        names = {*operands(statement), *(free_names(index) if index is not None else ())}
        known[statement.name] = set().union(*(known.get(name, set()) for name in names))
    return known


def _split(one: Attention, axes: dict[str, set[str]], turned: bool) -> _Bodies:
    """The body by what needs it. Checks of indices go with the values that they check. The mask is
    left out where a block is seen whole: what a gradient needs, too, is computed with the score.
    """
    looped = "i2" if turned else "r0"
    by_name = {s.name: at for at, s in enumerate(one.body) if hasattr(s, "name")}
    checks: dict[str, list[int]] = {}
    for at, statement in enumerate(one.body):
        if isinstance(statement, CheckIndex):
            checks.setdefault(statement.value, []).append(at)

    def cone(*names: str | None) -> set[int]:
        pending = [name for name in names if name]
        result: set[int] = set()
        while pending:
            at = by_name.get(pending.pop())
            if at is None or at in result:
                continue
            result.add(at)
            statement = one.body[at]
            for check in checks.get(statement.name, ()):  # type: ignore[union-attr]
                result.add(check)
                pending += operands(one.body[check])
            index = index_of(statement)
            pending += [*operands(statement), *(free_names(index) if index is not None else ())]
        return result

    def varies(at: int) -> bool:
        statement = one.body[at]
        if isinstance(statement, CheckIndex):
            return any(looped in axes.get(name, ()) for name in operands(statement))
        return looped in axes[statement.name]  # type: ignore[union-attr]

    def statements(numbers: set[int]) -> Body:
        return tuple(one.body[at] for at in sorted(numbers))

    gradient = cone(one.gradient)
    scatters = cone(*(name for each in one.scatters for name in (each.value, each.place)))
    visible = cone(one.visible)
    changed = cone(one.changed) | visible & (gradient | scatters)
    parts = [changed, visible - changed, gradient - changed, scatters - gradient - changed]
    invariant = {at for part in parts for at in part if not varies(at)}
    return _Bodies(statements(invariant), *(statements(part - invariant) for part in parts))


def _reads_scores(body: Body) -> bool:
    return any(getattr(s, "buffer", None) == "scores" for s in body)


def _needs_64_bits(one: Attention) -> bool:
    """Whether an index between the products may pass 2**31."""
    sizes: tuple[Integer, ...] = (one.batch, one.heads, one.queries, one.keys)
    places: list[Statement] = [
        s for s in one.body if isinstance(s, Load) and s.buffer not in (SCORES, GRADIENTS)
    ]
    names = {axis.name for axis in AXES}
    for statement in places:
        index = index_of(statement)
        assert index is not None
        own = free_names(index)
        if not own & names:
            continue
        if any(name[0] == "k" for name in own) or not all(isinstance(n, int) for n in sizes):
            return True
        ends = dict.fromkeys(own, 1) | {
            axis.name: int(size) for axis, size in zip(AXES, sizes, strict=True)
        }
        terms = sympy.Add.make_args(index)
        if sum(abs(int(evaluate_expr(term, ends))) for term in terms) >= 2**31:
            return True
    return False


def _has_far_rows(one: Attention) -> bool:
    """Whether the rows of one head may be 2**31 elements apart."""
    lengths = [n if isinstance(n, int) else LONGEST for n in (one.queries, one.keys)]
    strides = [part.strides[2] for _, part in (*one.operands, *one.results)]
    known = [int(stride) for stride in strides if stride.is_Integer]
    return max(known, default=0) * max(lengths) >= 2**31
