"""Reduce a long row in one pass where its sum depends on an earlier reduction of the same row.

    m: f32[8] = prims.amax(x, (1,))                       m: f32[8] = prims.amax(x, (1,))
    d: f32[8, 65536] = prims.sub(x, m expanded)     ->    s: f32[8] = prims.sum_exp(x, (1,))
    e: f32[8, 65536] = prims.exp(d)
    s: f32[8] = prims.sum(e, (1,))

    m = x's mean; d = prims.sub(x, m expanded)            q = prims.squared_deviations(x, (1,))
    s = prims.mul(d, d); q = prims.sum(s, (1,))           v = prims.squared_deviations(x, (1,))
    r = prims.sum(d, (1,)); v = q - r * r / size

The two reductions then share one loop over the row, and can be split over programs. A row that a
program keeps in registers, or a core in its cache, stays as it is: there a second pass is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.graph_passes.patterns import drop_unread, operands_of, repeated_from
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.split_reduction import (
    EVEN_ONLY,
    choose_split,
    reads_row_again,
    reduced_dims,
    wanted_parts,
)
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import PRIMS
from flambeau_prims.sizes import known_eq

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph
    from flambeau_prims.spec import Size


def reduce_in_one_pass(graph: Graph) -> Graph:
    """Rewrite the sums of `graph`, in place."""
    if not any(node.op is PRIMS["sum"] for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    rewritten = False
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        if node.op is PRIMS["sum"] and node.args[1]:
            builder.line = node.where
            node = _exponentials(builder, node) or _squares(node) or node
            for out in node.outputs:
                out.producer = node  # type: ignore[union-attr]
        elif node.op is PRIMS["sub"]:
            node = _corrected_squares(node) or node
            rewritten = rewritten or node.op is not PRIMS["sub"]
            for out in node.outputs:
                out.producer = node  # type: ignore[union-attr]
        nodes.append(node)
    graph.nodes = nodes
    if rewritten:
        drop_unread(graph)  # or the sum of deviations would be a pass over the row
    return graph


def _exponentials(builder: Builder, node: Node) -> Node | None:
    """A sum of exp(x - amax(x)) as `sum_exp`; also of logsumexp's, where an infinite amax(x) is
    replaced by 0.
    """
    shifted = operands_of(node.args[0], "exp")
    difference = operands_of(shifted[0], "sub") if shifted else None
    if difference is None:
        return None
    x, shift = difference
    dims = reduced_dims(node)
    top = repeated_from(shift, x, dims)
    finite = operands_of(top, "where")
    if finite is not None:
        infinite = operands_of(finite[0], "isinf")
        if infinite is None or finite[1] != 0 or infinite[0] is not finite[2]:
            return None
        top = finite[2]
    reduced = operands_of(top, "amax")
    if reduced is None or reduced[0] is not x or reduced[1] != node.args[1]:
        return None
    result = _profitable(node, "sum_exp", x)
    if result is None or finite is None:
        return result
    (out,) = node.outputs
    assert out is not None
    total = Value(builder.fresh_name(), out.spec)
    total.producer = Node(result.op, result.args, {}, (total,), node.where)
    builder.nodes.append(total.producer)
    # Around 0 a row with an infinite maximum sums to inf or, of -inf alone, to 0.
    infinite_sum = builder.exp(top)
    return Node(PRIMS["where"], (builder.isinf(top), infinite_sum, total), {}, (out,), node.where)


def _squares(node: Node) -> Node | None:
    """A sum of (x - mean(x))**2 as `squared_deviations`."""
    factors = operands_of(node.args[0], "mul")
    if factors is None or factors[0] is not factors[1]:
        return None
    difference = operands_of(factors[0], "sub")
    if difference is None:
        return None
    x, shift = difference
    average = repeated_from(shift, x, reduced_dims(node))
    if average is None:  # or x is a number
        return None
    total = _total_of_mean(average, x, node)
    reduced = operands_of(total, "sum")
    if reduced is None or reduced[0] is not x or reduced[1] != node.args[1]:
        return None
    return _profitable(node, "squared_deviations", x)


def _corrected_squares(node: Node) -> Node | None:
    """`squared_deviations` less what the deviations from a rounded mean sum to, squared and divided
    by their number: the primitive has no rounded mean.
    """
    squares, amount = node.args
    reduced = operands_of(squares, "squared_deviations")
    if reduced is None or not isinstance(amount, Value):
        return None
    x, dims = reduced
    bounded = operands_of(amount, "minimum")
    sums = operands_of(_divided(bounded[0] if bounded else amount, x, dims), "mul")
    if sums is None or sums[0] is not sums[1]:
        return None
    rest = operands_of(sums[0], "sum")
    deviation = operands_of(rest[0], "sub") if rest else None
    if rest is None or deviation is None or rest[1] != dims or deviation[0] is not x:
        return None
    middle = repeated_from(deviation[1], x, dims)
    total = operands_of(_divided(middle, x, dims), "sum")
    if total is None or total[0] is not x or total[1] != dims:
        return None
    return Node(PRIMS["squared_deviations"], reduced, {}, node.outputs, node.where)


def _divided(value: Any, x: Value, dims: tuple[int, ...]) -> Any:
    """What is divided by the number of reduced elements."""
    return _total_of_mean(value, x, Node(PRIMS["sum"], (x, dims), {}, ()))


def _total_of_mean(average: Any, x: Value, node: Node) -> Any:
    """What `average` divides by the number of reduced elements."""
    count: Size = 1
    for d in reduced_dims(node):
        count = x.spec.shape[d] * count
    divided = operands_of(average, "div")
    if divided is not None:
        amount = divided[1]
        if isinstance(amount, Value):
            return None
        same = amount == count if isinstance(amount, (int, float)) else known_eq(amount, count)
        return divided[0] if same else None
    scaled = operands_of(average, "mul")
    if scaled is not None and isinstance(count, int) and count:
        return scaled[0] if scaled[1] == 1.0 / count else None
    return average if count == 1 else None


def _profitable(node: Node, name: str, x: Value) -> Node | None:
    """The reduction of x by the primitive `name`, if a row is long and can be split as needed."""
    dims = reduced_dims(node)
    result = Node(PRIMS[name], (x, node.args[1]), {}, node.outputs, node.where)
    if not reads_row_again(result, dims):
        return None
    options = InductorOptions()
    split = choose_split(result, dims, options)
    if name in EVEN_ONLY and 4 * split.count(x.spec) < wanted_parts(x.spec, dims, options):
        return None
    return result
