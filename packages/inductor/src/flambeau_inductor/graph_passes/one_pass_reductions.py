"""Reduce a long row in one pass where its sum depends on an earlier reduction of the same row.

    m: f32[8] = prims.amax(x, (1,))                       m: f32[8] = prims.amax(x, (1,))
    d: f32[8, 65536] = prims.sub(x, m expanded)     ->    s: f32[8] = prims.sum_exp(x, (1,))
    e: f32[8, 65536] = prims.exp(d)
    s: f32[8] = prims.sum(e, (1,))

    n = x's sum / size; d = prims.sub(x, n expanded)      q = prims.squared_deviations(x, (1,))
    s = prims.mul(d, d); q = prims.sum(s, (1,))
    r = prims.sum(d, (1,)) / size                         m = prims.mean(x, (1,))
    m = prims.where(far, n + r, n)                        v = prims.squared_deviations(x, (1,))
    v = prims.where(far, q - r * r * size, q)

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
        elif node.op is PRIMS["where"]:
            node = _corrected_squares(node) or _corrected_mean(node) or node
            rewritten = rewritten or node.op is not PRIMS["where"]
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
    """`squared_deviations`, less what the deviations from a rounded mean make of them: the
    primitive has no rounded mean.
    """
    _, corrected, squares = node.args
    reduced = operands_of(squares, "squared_deviations")
    bounded = operands_of(corrected, "maximum")
    difference = operands_of(bounded[0], "sub") if bounded and bounded[1] == 0 else None
    if reduced is None or difference is None or difference[0] is not squares:
        return None
    x, dims = reduced
    factors = operands_of(difference[1], "mul")
    if factors is None or _rest_of_mean(factors[1], x, dims) is not factors[0]:
        return None
    return Node(PRIMS["squared_deviations"], reduced, {}, node.outputs, node.where)


def _corrected_mean(node: Node) -> Node | None:
    """A mean with the mean of the deviations from it added, as `mean`."""
    _, corrected, near = node.args
    both = operands_of(corrected, "add")
    total = _divided_sum(near)
    if both is None or both[0] is not near or total is None:
        return None
    x, dims = total
    if _rest_of_mean(both[1], x, dims) is None or _mean_of(near, x, dims) is None:
        return None
    return _profitable(Node(PRIMS["sum"], total, {}, node.outputs, node.where), "mean", x)


def _divided_sum(value: Any) -> tuple[Any, ...] | None:
    """The operands of the sum that a value is a multiple of."""
    scaled = operands_of(value, "div") or operands_of(value, "mul")
    return operands_of(scaled[0], "sum") if scaled else None


def _rest_of_mean(shift: Any, x: Value, dims: tuple[int, ...]) -> Any:
    """The sum of x's deviations from its rounded mean, if `shift` is their mean."""
    rest = _divided(shift, x, dims)
    deviations = operands_of(rest, "sum")
    difference = operands_of(deviations[0], "sub") if deviations else None
    if deviations is None or difference is None:
        return None
    if deviations[1] != dims or difference[0] is not x:
        return None
    near = repeated_from(difference[1], x, dims)
    return rest if near is not None and _mean_of(near, x, dims) is not None else None


def _mean_of(value: Any, x: Value, dims: tuple[int, ...]) -> Any:
    """The sum of x over dims, if a value is its mean."""
    total = _divided(value, x, dims)
    reduced = operands_of(total, "sum")
    return total if reduced is not None and reduced[0] is x and reduced[1] == dims else None


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
