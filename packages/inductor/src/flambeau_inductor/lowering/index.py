"""Lower primitives that read from computed places: flip, gather, index, pad, cat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.indexing.expressions import linear, symbol
from flambeau_inductor.ir import Compute, Constant
from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.lowering.registry import element_rule
from flambeau_inductor.lowering.value_bounds import lies_inside
from flambeau_prims.builder import compute_dtype
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Kind, Prim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_prims.graph import Graph, Node


@element_rule("flip")
def lower_flip(elements: Elements, node: Node, index: Index) -> str:
    """size - 1 - index along the flipped dims."""
    x, dims = node.args
    shape = elements.shape(x)
    point = tuple(
        shape[d] - 1 - position if d in dims else position for d, position in enumerate(index)
    )
    return elements.element(x, point)


@element_rule("gather")
def lower_gather(elements: Elements, node: Node, index: Index) -> str:
    """x at the index tensor's element along one dim."""
    x, dim, positions = node.args
    name = elements.element(positions, index)
    checked = not lies_inside(positions, x.spec.shape[dim])
    chosen = elements.indirect(name, elements.shape(x)[dim], checked=checked)
    return elements.element(x, (*index[:dim], chosen, *index[dim + 1 :]))


@element_rule("index")
def lower_index(elements: Elements, node: Node, index: Index) -> str:
    """aten.index.Tensor: dims with an index tensor give way to the tensors' common shape."""
    x, indices = node.args
    return elements.element(x, indexed_point(elements, x, indices, index))


def indexed_point(
    elements: Elements, x: Value, indices: Sequence[Value | None], index: Index
) -> Index:
    """The point of x that `indices` give for a point of the result of indexing."""
    tensors = {d: item for d, item in enumerate(indices) if item is not None}
    given = list(tensors)
    common = tensors[given[0]].spec.ndim
    adjacent = given == list(range(given[0], given[-1] + 1))
    first = given[0] if adjacent else 0
    inside = index[first : first + common]
    kept = iter((*index[:first], *index[first + common :]))
    shape = elements.shape(x)
    point: list[sympy.Expr] = []
    for d in range(x.spec.ndim):
        if d in tensors:
            name = elements.element(tensors[d], inside)
            checked = not lies_inside(tensors[d], x.spec.shape[d])
            if checked:
                name = wrap_negative(elements, name, shape[d])
            point.append(elements.indirect(name, shape[d], checked=checked))
        else:
            point.append(next(kept))
    return tuple(point)


def store_scattered(
    elements: Elements, target: tuple[str, Value], indices: Sequence[Value | None], source: Value,
    index: Index, mode: str,
) -> None:  # fmt: skip
    """Store the source's element where the indices say. Sums of zeros chosen by a condition are
    left out: a place that many points name is not fought over for nothing.
    """
    buffer, out = target
    builder = elements.builder
    name = elements.element(source, index)
    mask: str | None = None
    chosen = builder.by_name[name]
    if mode == "add" and isinstance(chosen, Compute) and chosen.op == "where":
        condition, value, other = chosen.args
        zero = builder.by_name[other]
        if isinstance(zero, Constant) and zero.value == 0:
            mask, name = condition, value
    point = indexed_point(elements, out, indices, index)
    strides = elements.sizes.convert_all(out.spec.stride)
    address = linear(point, strides, sympy.S.Zero)
    builder.store(buffer, address, name, mode, mask)


def wrap_negative(elements: Elements, name: str, size: sympy.Expr) -> str:
    """An int64 index with `size` added where it is negative."""
    builder = elements.builder
    dtype = builder.dtypes[name]
    negative = builder.pointwise("lt", name, builder.constant(0, dtype))
    wrapped = builder.pointwise("add", name, builder.index_value(size, dtype))
    return builder.pointwise("where", negative, wrapped, name)


@element_rule("searchsorted")
def lower_searchsorted(elements: Elements, node: Node, index: Index) -> str:
    """Halvings of the boundaries that are left, whose number does not depend on the data."""
    boundaries, x, right = node.args
    builder = elements.builder
    dtype = compute_dtype(x.spec.dtype)
    value = builder.cast(elements.element(x, index), dtype)
    row = index[:-1] if boundaries.spec.ndim > 1 else ()
    left = count = boundaries.spec.shape[-1]
    first = builder.constant(0, torch.int64)
    start: sympy.Expr = sympy.S.Zero
    while left:
        half = max(1, left // 2)
        boundary = builder.cast(elements.element(boundaries, (*row, start + (half - 1))), dtype)
        beyond = builder.pointwise("gt" if right else "ge", boundary, value)
        moved = builder.pointwise("add", first, builder.constant(half, torch.int64))
        first = builder.pointwise("where", beyond, first, moved)
        start = symbol(first)
        elements.math.ranges.setdefault(first, sympy.Integer(count))
        left = left - half if left > 1 else 0
    return first


@element_rule("pad")
def lower_pad(elements: Elements, node: Node, index: Index) -> str:
    """x moved by `lows`, and `value` outside of it."""
    x, lows, _, value = node.args
    shape = elements.shape(x)
    builder = elements.builder
    inside: str | None = None
    point = []
    padded = elements.shape(result_of(node))
    for position, low, size, total in zip(
        index, elements.sizes.convert_all(lows), shape, padded, strict=True
    ):
        point.append(sympy.expand(position - low))
        if low is not sympy.S.Zero:
            inside = builder.both(inside, elements.condition("ge", position, low))
        if low + size != total:
            inside = builder.both(
                inside, elements.condition("lt", position, sympy.expand(low + size))
            )
    if inside is None:
        return elements.element(x, tuple(point))
    with elements.where(inside):
        name = elements.element(x, tuple(point))
    outside = elements.number(value, x.spec.dtype)
    return builder.pointwise("where", inside, name, outside)


@element_rule("cat")
def lower_cat(elements: Elements, node: Node, index: Index) -> str:
    """The part that holds the index along `dim`; only that one is read."""
    xs, dim = node.args
    builder = elements.builder
    parts = []
    start: sympy.Expr = sympy.S.Zero
    last = len(xs) - 1
    for number, x in enumerate(xs):
        stop = sympy.expand(start + elements.shape(x)[dim])
        inside: str | None = None
        if number > 0:
            inside = elements.condition("ge", index[dim], start)
        if number < last:
            inside = builder.both(inside, elements.condition("lt", index[dim], stop))
        point = (*index[:dim], sympy.expand(index[dim] - start), *index[dim + 1 :])
        if inside is None:
            return elements.element(x, point)
        with elements.where(inside):
            parts.append((inside, elements.element(x, point)))
        start = stop
    result = parts[-1][1]
    for inside, name in reversed(parts[:-1]):
        result = builder.pointwise("where", inside, name, result)
    return result


def continued_scatters(graph: Graph) -> set[Value]:
    """Results of scatters that only another scatter uses, which goes on in their memory."""
    uses: dict[Value, int] = {}
    for value in graph.live_at_exit():
        uses[value] = uses.get(value, 0) + 1
    for node in graph.nodes:
        for value in node.operands():
            uses[value] = uses.get(value, 0) + 1
    result = set()
    for node in graph.nodes:
        if not isinstance(node.op, Prim) or node.op.kind is not Kind.SCATTER:
            continue
        (out,), x = node.outputs, node.args[0]
        source = x.producer
        is_scatter = source is not None and source.op is node.op
        if is_scatter and uses[x] == 1 and out is not None and out.spec.stride == x.spec.stride:
            result.add(x)
    return result
