"""Make one kernel of a group: replay its nests into one body over common axes, then name everything
canonically.

A value that an earlier nest of the group stored is used directly; stores that nobody outside the
group reads are dropped; adjacent axes that every access walks as one are merged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import free_names, linear_parts, symbol
from flambeau_inductor.ir import (
    SHARE,
    TILE,
    Axis,
    Body,
    CheckIndex,
    ColumnReduce,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Scan,
    ScheduledKernel,
    Sort,
    Store,
    TileReduce,
    index_of,
)
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.split_axes import rewrite
from flambeau_inductor.scheduler.groups import math_for

if TYPE_CHECKING:
    import torch

    from flambeau_inductor.indexing.ranges import RangedMath
    from flambeau_inductor.indexing.sizes import SizeTable
    from flambeau_inductor.ir import Integer, Statement
    from flambeau_inductor.nodes import LoopNest
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.scheduler.groups import Group, Mapping

Axes = tuple[Axis, ...]

MAX_LABEL = 6
"""A kernel is named after at most this many operators."""


def build_kernel(
    group: Group,
    internal: set[str],
    dtypes: dict[str, torch.dtype],
    sizes: SizeTable,
    options: InductorOptions,
    overwritten: dict[str, str] | None = None,
) -> ScheduledKernel:
    """The kernel of a group of nests.  `internal`: buffers that nobody outside the group reads;
    `overwritten`: buffers whose memory others take, which the group writes.
    """
    body = fused_body(group, internal, options, overwritten or {})
    outer, inner, body = merge_axes(group.outer, group.inner, body)
    label = _label([node.label for node in group.nodes])  # type: ignore[union-attr]
    return canonical_kernel(outer, inner, body, dtypes, sizes, group.device, label, group.shares)


# 1. One body


def fused_body(
    group: Group, internal: set[str], options: InductorOptions, overwritten: dict[str, str]
) -> Body:
    """The bodies of all members as one, in the group's axes."""
    builder = BodyBuilder(options.elides_casts)
    math = math_for((*group.outer, *group.inner))
    stored: dict[tuple[str, sympy.Expr], str] = {}
    for node, mapping in group.members:
        replayer = Replayer(builder, mapping, math, stored, internal, overwritten)
        replayer.replay(node)  # type: ignore[arg-type]
    return builder.finish()


class Replayer:
    """Replays one nest's statements into the group's builder."""

    def __init__(
        self, builder: BodyBuilder, mapping: Mapping, math: RangedMath,
        stored: dict[tuple[str, sympy.Expr], str], internal: set[str], overwritten: dict[str, str],
    ) -> None:  # fmt: skip
        self.builder = builder
        self.mapping: Mapping = dict(mapping)
        self.math = math
        self.stored = stored
        self.internal = internal
        self.overwritten = overwritten
        self.names: dict[str, str] = {}
        self.keeps_casts = False
        self.identity = all(old == new for old, new in mapping.items())

    def replay(self, nest: LoopNest) -> None:
        self.keeps_casts = nest.keeps_casts
        for statement in nest.body:
            self.step(statement)

    def index(self, expr: sympy.Expr) -> sympy.Expr:
        """An index expression in the group's axes and value names."""
        indirect = free_names(expr) & self.names.keys()
        if not indirect:
            return expr if self.identity else rewrite(expr, self.mapping, self.math)
        mapping = self.mapping | {symbol(name): symbol(self.names[name]) for name in indirect}
        return rewrite(expr, mapping, self.math)

    def step(self, statement: Statement) -> None:
        builder, names = self.builder, self.names
        match statement:
            case Constant(name, dtype, value):
                names[name] = builder.constant(value, dtype)
            case IndexValue(name, dtype, expr):
                names[name] = builder.index_value(self.index(expr), dtype)
            case Load(name, dtype, buffer, index, mask):
                names[name] = self.load(
                    buffer, self.index(index), dtype, names[mask] if mask else None
                )
            case Compute(name, dtype, "cast", (x,)) if not self.keeps_casts:
                names[name] = builder.cast(names[x], dtype)
            case Compute(name, dtype, op, args):
                names[name] = builder.compute(op, tuple([names[arg] for arg in args]), dtype)
            case Reduce(name, dtype, kind, value):
                names[name] = builder.reduce(kind, names[value], dtype)
            case ColumnReduce(name, dtype, kind, value):
                names[name] = builder.reduce_columns(kind, names[value], dtype)
            case TileReduce(name, dtype, kind, value, points):
                names[name] = builder.reduce_tile(kind, names[value], dtype, points)
            case Scan(name, dtype, kind, value, reverse):
                names[name] = builder.scan(kind, names[value], dtype, reverse)
            case Sort(name, dtype, kind, value, descending):
                names[name] = builder.sort(kind, names[value], dtype, descending)
            case CheckIndex(value, size, mask):
                builder.check_index(names[value], size, names[mask] if mask else None)
            case Store(buffer, index, value, mode, mask) if mode:
                condition = names[mask] if mask else None
                builder.store(buffer, self.index(index), names[value], mode, condition)
            case Store(buffer, index, value, _, mask):
                address = self.index(index)
                self.stored[buffer, address] = names[value]
                if buffer not in self.internal:
                    condition = names[mask] if mask else None
                    builder.store(buffer, address, names[value], mask=condition)

    def load(self, buffer: str, index: sympy.Expr, dtype: torch.dtype, mask: str | None) -> str:
        value = self.stored.get((buffer, index))
        if value is None and buffer in self.internal:
            # Fusion has seen that it is read where it is written; the two index expressions are
            # only written differently.
            (value,) = {stored for (name, _), stored in self.stored.items() if name == buffer}
        if value is None:
            return self.builder.load(self.overwritten.get(buffer, buffer), index, dtype, mask)
        if mask is None:
            return value
        return self.builder.pointwise("where", mask, value, self.builder.constant(0, dtype))


# 2. Fewer axes


def merge_axes(outer: Axes, inner: Axes, body: Body) -> tuple[Axes, Axes, Body]:
    """The loop nest with adjacent axes merged that all index expressions walk as one."""
    names = frozenset(axis.symbol.name for axis in (*outer, *inner))
    indices = list(dict.fromkeys(index for s in body if (index := index_of(s)) is not None))
    strides: list[dict[str, sympy.Expr]] = []
    fixed: set[str] = set()
    for index in indices:
        parts = linear_parts(index, names)
        if parts is None:
            fixed |= free_names(index) & names
        else:
            strides.append(parts[0])
    mapping: Mapping = {}
    outer = _merge_group(outer, strides, fixed, mapping)
    inner = _merge_group(inner, strides, fixed, mapping)
    if not mapping:
        return outer, inner, body
    math = math_for((*outer, *inner))
    return outer, inner, tuple(_reindexed(statement, mapping, math) for statement in body)


def _merge_group(
    axes: Axes, strides: list[dict[str, sympy.Expr]], fixed: set[str], mapping: Mapping
) -> Axes:
    """Merge from the innermost axis outward; `mapping` gets 0 for the outer axis of a pair."""
    if not axes:
        return axes
    result = [axes[-1]]
    for axis in reversed(axes[:-1]):
        below = result[-1]
        name, low = axis.symbol.name, below.symbol.name
        together = (
            name not in fixed
            and low not in fixed
            and all(
                part.get(name, sympy.S.Zero)
                == sympy.expand(part.get(low, sympy.S.Zero) * below.size)
                for part in strides
            )
        )
        if together:
            mapping[axis.symbol] = sympy.S.Zero
            size = sympy.expand(sympy.sympify(axis.size) * below.size)
            result[-1] = Axis(below.symbol, int(size) if size.is_Integer else size)
        else:
            result.append(axis)
    return tuple(reversed(result))


def _reindexed(statement: Statement, mapping: Mapping, math: RangedMath) -> Statement:
    index = index_of(statement)
    if index is None:
        return statement
    changed = rewrite(index, mapping, math)
    return replace(statement, **{"expr" if isinstance(statement, IndexValue) else "index": changed})


# 3. Canonical names


def canonical_kernel(
    outer: Axes,
    inner: Axes,
    body: Body,
    dtypes: dict[str, torch.dtype],
    sizes: SizeTable,
    device: str,
    label: str,
    shares: Integer = 0,
) -> ScheduledKernel:
    """The loop nest in canonical names, with the program's names beside it."""
    namer = Namer(outer, inner)
    new_outer = namer.axes(outer, "i")
    new_inner = namer.axes(inner, "r")
    new_body = tuple(namer.statement(statement) for statement in body)
    new_shares = namer.size(shares)
    params = tuple(Param(new, dtypes[old], namer.access[old]) for old, new in namer.buffers.items())
    kernel = LoopKernel(
        device.partition(":")[0], params, tuple(symbol(f"k{n}") for n in range(len(namer.sizes))),
        new_outer, new_inner, new_body,
        hints=tuple(sizes.hint(symbol(name)) for name in namer.sizes), label=label,
        shares=new_shares,
    )  # fmt: skip
    ints = tuple(sizes.dim(symbol(name)) for name in namer.sizes)
    return ScheduledKernel(kernel, tuple(namer.buffers), ints, device)


class Namer:
    """Gives buffers, values, axes and sizes their canonical names, in order of appearance."""

    def __init__(self, outer: Axes, inner: Axes) -> None:
        self.buffers: dict[str, str] = {}
        self.access: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.sizes: dict[str, sympy.Symbol] = {}
        self.axis: dict[str, sympy.Symbol] = {each.name: each for each in (SHARE, TILE)}
        for axes, prefix in ((outer, "i"), (inner, "r")):
            for number, axis in enumerate(axes):
                self.axis[axis.symbol.name] = symbol(f"{prefix}{number}")

    def axes(self, axes: Axes, prefix: str) -> Axes:
        """The axes, renamed."""
        return tuple(Axis(self.axis[axis.symbol.name], self.size(axis.size)) for axis in axes)

    def size(self, size: int | sympy.Expr) -> int | sympy.Expr:
        """A size in canonical symbols."""
        return size if isinstance(size, int) else self.expr(size)

    def expr(self, expr: sympy.Expr) -> sympy.Expr:
        """An index expression in canonical symbols."""
        mapping = {}
        for name in sorted(free_names(expr)):
            new = self.axis.get(name)
            if new is None:
                value = self.values.get(name)
                new = symbol(value) if value is not None else self.sizes.get(name)
            if new is None:
                new = self.sizes[name] = symbol(f"k{len(self.sizes)}")
            if new.name != name:
                mapping[symbol(name)] = new
        return expr.xreplace(mapping) if mapping else expr

    def buffer(self, name: str, access: str) -> str:
        """A buffer's parameter name; notes how it is used."""
        before = self.access.get(name)
        self.access[name] = access if before in (None, access) else "update"
        return self.buffers.setdefault(name, f"b{len(self.buffers)}")

    def define(self, name: str) -> str:
        """A value's name where it is defined."""
        new = self.values[name] = f"v{len(self.values)}"
        return new

    def statement(self, statement: Statement) -> Statement:
        """A statement in canonical names."""
        values = self.values
        match statement:
            case Constant(name, dtype, value):
                return Constant(self.define(name), dtype, value)
            case IndexValue(name, dtype, expr):
                changed = self.expr(expr)
                return IndexValue(self.define(name), dtype, changed)
            case Load(name, dtype, buffer, index, mask):
                changed = self.expr(index)
                memory = self.buffer(buffer, "read")
                return Load(
                    self.define(name), dtype, memory, changed, values[mask] if mask else None
                )
            case Compute(name, dtype, op, args):
                inputs = tuple([values[arg] for arg in args])
                return Compute(self.define(name), dtype, op, inputs)
            case Reduce(name, dtype, kind, value):
                source = values[value]
                return Reduce(self.define(name), dtype, kind, source)
            case ColumnReduce(name, dtype, kind, value):
                source = values[value]
                return ColumnReduce(self.define(name), dtype, kind, source)
            case TileReduce(name, dtype, kind, value, points):
                source = values[value]
                return TileReduce(self.define(name), dtype, kind, source, points)
            case Scan(name, dtype, kind, value, reverse):
                source = values[value]
                return Scan(self.define(name), dtype, kind, source, reverse)
            case Sort(name, dtype, kind, value, descending):
                source = values[value]
                return Sort(self.define(name), dtype, kind, source, descending)
            case CheckIndex(value, size, mask):
                return CheckIndex(values[value], self.size(size), values[mask] if mask else None)
            case Store(buffer, index, value, mode, mask):
                memory = self.buffer(buffer, "update" if mode else "write")
                condition = values[mask] if mask else None
                return Store(memory, self.expr(index), values[value], mode, condition)
        raise TypeError(f"no statement: {statement!r}")


def _label(labels: list[str]) -> str:
    """Distinct operator names of the members, the first and last of many."""
    words = list(dict.fromkeys(word for label in labels for word in label.split("_")))
    if len(words) > MAX_LABEL:
        words = words[: MAX_LABEL - 1] + words[-1:]
    return "_".join(words)
