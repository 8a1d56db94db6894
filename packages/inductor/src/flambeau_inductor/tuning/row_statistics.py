"""Reduce the rows of a matrix product where its tiles are computed.

nest amax (i0 < 512 | r0 < 768): store buf1[i0] (reduce max (abs (load buf0[768*i0 + r0])))
->  nest (i0 < 512, i1 < 768): store buf2[6*i0 + tile0] (reduce max by 128 (abs (load buf0[...])))
    nest (i0 < 512 | r0 < 6): store buf1[i0] (reduce max (load buf2[6*i0 + r0]))

The first nest joins the product's kernel: it reduces each tile of 128 lanes (`ir.TileReduce`). If
nobody else reads the product, it is never written. All reductions of the group are cut so, and a
sum of exponentials below a maximum of the same row becomes one pass (`sum_exp`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.contraction import contraction_of
from flambeau_inductor.indexing.expressions import free_names, int_if_known, linear, symbol, sympify
from flambeau_inductor.ir import (
    TILE,
    Axis,
    CheckIndex,
    ColumnReduce,
    Compute,
    Reduce,
    Scan,
    Sort,
    Store,
    TileReduce,
    defined_name,
    index_of,
    inner_names,
    is_inner,
    operands,
)
from flambeau_inductor.lowering.body_builder import BodyBuilder, drop_dead
from flambeau_inductor.lowering.reduction import combine_parts
from flambeau_inductor.nodes import Buffer, LoopNest
from flambeau_inductor.scheduler.build_kernel import Replayer, build_kernel, fused_body, merge_axes
from flambeau_inductor.scheduler.fusion import merged
from flambeau_inductor.scheduler.groups import group_of, math_for
from flambeau_inductor.scheduler.match_axes import numel
from flambeau_inductor.tuning.unread_results import cut_to_reads
from flambeau_prims.sizes import ceil_div
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, LoopKernel, Statement
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_prims.spec import Size

PARTIAL_KINDS: dict[str, tuple[str, ...]] = {
    "argmax": ("argmax", "max"),
    "argmin": ("argmin", "min"),
    "sum_exp": ("max", "sum_exp"),
    "squared_deviations": ("sum", "squared_deviations"),
    "mean": ("sum",),
}
"""The reductions of a tile that combine to one of a row, where that needs several, in an order in
which a code generator can make one of both.
"""


@dataclass(frozen=True)
class Stages:
    """The product's group with the first stage and its kernel, the group of the second stage, and
    the buffers between them.
    """

    first: Group
    kernel: LoopKernel
    second: Group
    buffers: dict[str, Buffer]


@dataclass(frozen=True)
class RowReductions:
    """A group that reduces the rows of a product: its body over the rows `outer` and one `inner`
    axis, the numbers of rows and of elements in each, a node in its place; the product's buffer,
    and whether nobody else reads that.
    """

    outer: tuple[Axis, ...]
    inner: Axis
    body: Body
    rows: Size
    length: Size
    node: LoopNest
    result: str
    is_only_reader: bool

    def stages(
        self, product: Group, points: int, name: str, internal: set[str], lowered: Lowered,
        options: InductorOptions,
    ) -> Stages | None:  # fmt: skip
        """The reductions in tiles of so many points; None if the product's kernel cannot take the
        first stage. `name` begins the names of buffers; those `internal` ones only it reads.
        """
        tiles = ceil_div(self.length, points)
        count = lowered.sizes.convert(tiles)
        place = linear(
            tuple(axis.symbol for axis in self.outer), _strides(self.outer, count), sympy.S.Zero
        )
        partial: dict[tuple[str, str], Buffer] = {}
        for reduce in self.reduces:
            for kind in PARTIAL_KINDS.get(reduce.kind, (reduce.kind,)):
                dtype = torch.int64 if kind.startswith("arg") else reduce.dtype
                if kind in ("max", "min"):
                    dtype = self.dtype_of(reduce.value)
                device = torch.device(self.node.device)
                spec = Spec.of((self.rows, tiles), dtype=dtype, device=device)
                label = f"{name}_{len(partial)}"
                partial.setdefault((kind, reduce.value), Buffer(label, spec, "computed"))
        first = self.first(product, points, place, partial, lowered, options)
        if first is None:
            return None
        buffers = {buffer.name: buffer for buffer in partial.values()}
        dtypes = {each: buffer.spec.dtype for each, buffer in (lowered.buffers | buffers).items()}
        kernel = build_kernel(first, internal, dtypes, lowered.sizes, options).kernel
        contraction = contraction_of(kernel)
        if contraction is None or contraction.lanes != kernel.outer[-1:]:
            return None
        second = self.second(place, count, points, partial, options)
        return Stages(first, kernel, second, buffers)

    @property
    def reduces(self) -> list[Reduce]:
        """The reductions."""
        return [statement for statement in self.body if isinstance(statement, Reduce)]

    def dtype_of(self, value: str) -> torch.dtype:
        """The dtype of a value of the body."""
        return next(s.dtype for s in self.body if defined_name(s) == value)  # type: ignore[union-attr]

    def first(
        self, product: Group, points: int, place: sympy.Expr,
        partial: dict[tuple[str, str], Buffer], lowered: Lowered, options: InductorOptions,
    ) -> Group | None:  # fmt: skip
        """The product's group and the nest that reduces its tiles, the reduced axis last."""
        inner = inner_names(self.body, (self.inner,))
        late = depending_on_reductions(self.body)
        body: list[Statement] = [
            s for s in self.body
            if not isinstance(s, (Reduce, CheckIndex)) and defined_name(s) not in late
            and (is_inner(s, inner) or not isinstance(s, Store))
        ]  # fmt: skip
        for number, ((kind, value), buffer) in enumerate(partial.items()):
            result = f"tile_{number}"
            body.append(TileReduce(result, buffer.spec.dtype, kind, value, points))
            body.append(Store(buffer.name, sympy.expand(place + TILE), result))
        nest = self.nest((*self.outer, self.inner), (), drop_dead(body))
        reader = group_of(nest)
        if self.is_only_reader:
            product = cut_to_reads(product, reader, self.result) or product
        union = merged(lowered, product, reader, options)
        if isinstance(union, str):
            return None
        walked = union.members[-1][1].get(self.inner.symbol)
        last = [axis for axis in union.outer if axis.symbol == walked]
        if union.members[-1][0] is not nest or len(last) != 1:
            return None
        if union.outer[-1:] != tuple(last) and not self.is_only_reader:
            return None  # rows would be stored across memory
        rest = tuple(axis for axis in union.outer if axis not in last)
        return replace(union, outer=(*rest, *last))

    def second(
        self, place: sympy.Expr, tiles: sympy.Expr, points: int,
        partial: dict[tuple[str, str], Buffer], options: InductorOptions,
    ) -> Group:  # fmt: skip
        """The nest that combines the tiles of a row, and what is done with the results."""
        inside = inner_names(self.body, (self.inner,))
        builder = BodyBuilder(options.elides_casts)
        tile = Axis(symbol("r0"), int_if_known(tiles))
        inner = () if tile.size == 1 else (tile,)
        identity = {axis.symbol: axis.symbol for axis in self.outer}
        combiner = _Combiner(
            builder, partial, place, tile, has_inner=bool(inner), points=points, length=self.inner
        )
        replayer = Replayer(builder, identity, math_for(self.outer), {}, set(), {})
        for statement in self.body:
            if isinstance(statement, Reduce):
                replayer.names[statement.name] = combiner.combined(statement)
            elif not is_inner(statement, inside):
                replayer.step(statement)
        return group_of(self.nest(self.outer, inner, builder.finish()))

    def nest(self, outer: tuple[Axis, ...], inner: tuple[Axis, ...], body: Body) -> LoopNest:
        """A nest in place of the group."""
        node = self.node
        return LoopNest(
            node.order, node.device, outer, inner, body, node.label, node.where,
            computes=node.computes,
        )  # fmt: skip


def row_reductions(
    group: Group, result: str, internal: set[str], lowered: Lowered, options: InductorOptions
) -> RowReductions | None:
    """What a group reduces of rows of the buffer `result`, if each of its reductions can be cut;
    `internal`: buffers that only the group and the product read.
    """
    if group.is_extern or not group.inner or result not in group.loads or group.scattered:
        return None
    body = fused_body(group, internal - {result}, options, {})
    _, inner, body = merge_axes((), group.inner, body)
    if len(inner) != 1 or any(isinstance(s, (Scan, Sort, ColumnReduce)) for s in body):
        return None
    body = with_sums_of_exponentials(body, inner)
    late, names = depending_on_reductions(body), inner_names(body, inner)
    checked: set[str] = set()
    for statement in body:
        reads = {*operands(statement), *_names_in_index(statement)}
        if isinstance(statement, CheckIndex):
            checked.add(statement.value)
        in_first = isinstance(statement, Reduce) or is_inner(statement, names)
        if in_first and not reads.isdisjoint(late | checked):
            return None
        if not in_first and getattr(statement, "buffer", None) == result:
            return None  # the second stage would read what need not be written
    buffer = lowered.buffers[result]
    rows = _rows_of(buffer.spec, numel(group.outer), lowered)
    size = inner[0].size
    length = size if isinstance(size, int) else _size_of(buffer.spec, size, lowered)
    if rows is None or length is None or not any(isinstance(s, Reduce) for s in body):
        return None
    nodes = group.nests
    label = "_".join(dict.fromkeys(word for n in nodes for word in n.label.split("_")))
    # The product may stand between the first of the nests and the last.
    node = replace(nodes[0], order=nodes[-1].order, label=label, computes=group.computes)
    return RowReductions(
        group.outer, inner[0], body, rows, length, node, result, result in internal
    )  # fmt: skip


def depending_on_reductions(body: Body) -> set[str]:
    """The values that are reductions, or computed from such."""
    late: set[str] = set()
    for statement in body:
        name = defined_name(statement)
        if name is not None and (
            isinstance(statement, Reduce)
            or not late.isdisjoint({*operands(statement), *_names_in_index(statement)})
        ):
            late.add(name)
    return late


def with_sums_of_exponentials(body: Body, inner: tuple[Axis, ...]) -> Body:
    """The body with sums of exp(x - s), where s comes from a reduction of the row, as
    sum_exp(x) * exp(max(x) - s): that needs no s in its pass over the row. Mostly s is max(x).
    """
    late, names = depending_on_reductions(body), inner_names(body, inner)
    defined = {name: s for s in body if (name := defined_name(s)) is not None}
    greatest = {s.value: s.name for s in body if isinstance(s, Reduce) and s.kind == "max"}
    result: list[Statement] = []
    for statement in body:
        result.append(statement)
        if not isinstance(statement, Reduce) or statement.kind != "sum":
            continue
        exponential = defined[statement.value]
        difference = _operands(exponential, "exp", defined)
        x_and_shift = _operands(difference[0], "sub", defined) if difference else None
        if x_and_shift is None:
            continue
        x, shift = (str(defined_name(each)) for each in x_and_shift)
        if x in late or x not in names or shift not in late or shift in names:
            continue
        if not isinstance(defined[shift], Reduce):
            # Where a nest subtracts a reduction itself, it has said whether x is rounded.
            x = next((each for each in greatest if _rounds(each, x, defined)), x)
        if greatest.get(x) == shift:
            result[-1] = replace(statement, kind="sum_exp", value=x)
        else:
            result[-1:] = _scaled_sum(statement, x, shift)
    return drop_dead(result)


def _scaled_sum(statement: Reduce, x: str, shift: str) -> list[Statement]:
    """The sum of exp(x - shift) over a row; of an infinite maximum only that counts."""
    name, dtype = statement.name, statement.dtype
    top, total, apart = f"{name}_top", f"{name}_total", f"{name}_apart"
    weight, product, infinite = f"{name}_weight", f"{name}_product", f"{name}_infinite"
    return [
        Reduce(top, dtype, "max", x),
        Reduce(total, dtype, "sum_exp", x),
        Compute(apart, dtype, "sub", (top, shift)),
        Compute(weight, dtype, "exp", (apart,)),
        Compute(product, dtype, "mul", (total, weight)),
        Compute(infinite, torch.bool, "isinf", (top,)),
        Compute(name, dtype, "where", (infinite, weight, product)),
    ]


def _operands(
    statement: Statement, op: str, defined: dict[str, Statement]
) -> list[Statement] | None:
    """What computes the operands of an operator."""
    if not isinstance(statement, Compute) or statement.op != op:
        return None
    return [defined[arg] for arg in statement.args]


def _rounds(value: str, x: str, defined: dict[str, Statement]) -> bool:
    """Whether a value is x, or x rounded to a narrower dtype."""
    if value == x:
        return True
    narrow = _operands(defined[value], "cast", defined)
    wide = _operands(narrow[0], "cast", defined) if narrow else None
    return wide is not None and defined_name(wide[0]) == x


class _Combiner:
    """Combines the partial results of a row's tiles."""

    def __init__(
        self, builder: BodyBuilder, partial: dict[tuple[str, str], Buffer], place: sympy.Expr,
        tile: Axis, *, has_inner: bool, points: int, length: Axis,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.partial = partial
        self.place = place
        self.tile = tile
        self.has_inner = has_inner
        self.points = points
        self.length = sympify(length.size)

    def combined(self, reduce: Reduce) -> str:
        """The result of a row."""
        kinds = PARTIAL_KINDS.get(reduce.kind, (reduce.kind,))
        if not self.has_inner:
            return self.load(reduce.kind, reduce, sympy.S.Zero)
        if reduce.kind.startswith("arg"):
            # The first tile that has the extreme has it first.
            position, extreme = kinds
            first = self.load(extreme, reduce, self.tile.symbol)
            tile = self.builder.reduce(reduce.kind, first, torch.int64)
            return self.load(position, reduce, symbol(tile))
        parts = [self.load(kind, reduce, self.tile.symbol) for kind in kinds]
        if reduce.kind in PARTIAL_KINDS:
            each, whole = self.counts(reduce.dtype)
            if kinds[0] == "sum":
                parts[0] = self.builder.pointwise("div", parts[0], each)
            return combine_parts(self.builder, reduce.kind, parts, reduce.dtype, each, whole)
        return self.builder.reduce(reduce.kind, parts[0], reduce.dtype)

    def load(self, kind: str, reduce: Reduce, tile: sympy.Expr) -> str:
        """The partial result of a tile."""
        buffer = self.partial[kind, reduce.value]
        return self.builder.load(buffer.name, sympy.expand(self.place + tile), buffer.spec.dtype)

    def counts(self, dtype: torch.dtype) -> tuple[str, str]:
        """The numbers of elements of a tile, and of the row."""
        builder = self.builder
        behind = builder.index_value(
            sympy.expand(self.length - self.points * self.tile.symbol), torch.int64
        )
        each = builder.pointwise("minimum", behind, builder.constant(self.points, torch.int64))
        whole = builder.index_value(self.length, torch.int64)
        return builder.cast(each, dtype), builder.cast(whole, dtype)


def _strides(axes: tuple[Axis, ...], innermost: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """Row-major strides of axes."""
    result: list[sympy.Expr] = []
    step = innermost
    for axis in reversed(axes):
        result.insert(0, step)
        step = sympy.expand(step * axis.size)
    return tuple(result)


def _names_in_index(statement: Statement) -> frozenset[str]:
    index = index_of(statement)
    return frozenset() if index is None else free_names(index)


def _rows_of(spec: Spec, count: sympy.Expr, lowered: Lowered) -> Size | None:
    """The number of rows, as a size of the program."""
    if count.is_Integer:
        return int(count)
    for dim in range(spec.ndim):
        rows: Size = 1
        for other, size in enumerate(spec.shape):
            rows = rows if other == dim else size * rows
        if sympy.expand(lowered.sizes.convert(rows) - count) == 0:
            return rows
    return None


def _size_of(spec: Spec, size: sympy.Expr, lowered: Lowered) -> Size | None:
    """The dim's size that an axis has."""
    return next((each for each in spec.shape if lowered.sizes.convert(each) == size), None)
