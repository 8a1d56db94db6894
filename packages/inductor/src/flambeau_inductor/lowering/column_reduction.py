"""Lower a reduction over rows so that a kernel which reduces the same rows along them can take it
over (`ir.ColumnReduce`): layer norm's gradients of weight and bias, beside that of its input.

    m: f32[8192] = sum(g * x, (1,))        of x, g: f32[8192, 1024]
    w: f32[1024] = sum(g * h, (0,))        h a function of x and m
  ->  nest over i0 < 8192 | r0 < 1024, 256 shares: p[1024*share0 + r0] = column sum of g * h
      nest over i0 < 1024 | r0 < 256: w[i0] = sum of p

Both reductions then read x and g once. `find_shared_rows` names the reductions; that the nests
really share a kernel is the scheduler's affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.ir import SHARE
from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.lowering.reduction import REDUCTIONS
from flambeau_inductor.split_reduction import choose_shares, reduced_dims
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.sizes import hint_of
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_inductor.lowering.split_scan import Nests
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Graph, Node
    from flambeau_prims.spec import Size

SHARED = frozenset(("sum", "amax", "amin"))
"""The primitives that a kernel can compute column by column."""


def find_shared_rows(graph: Graph, options: InductorOptions) -> dict[Node, Size]:
    """The reductions over rows whose rows are reduced too, with the number of shares of these."""
    along: dict[tuple[object, ...], list[Node]] = {}
    across: list[tuple[tuple[object, ...], Node]] = []
    for node in graph.nodes:
        if isinstance(node.op, Prim) and node.op.kind is Kind.REDUCTION:
            key, is_row = _rows_of(node)
            if key is None:
                continue
            if is_row:
                along.setdefault(key, []).append(node)
            elif node.op.name in SHARED and result_of(node).spec.dtype.is_floating_point:
                across.append((key, node))
    result: dict[Node, Size] = {}
    if not any(key in along for key, _ in across):
        return result
    sources = _elementwise_sources(graph)
    for key, node in across:
        partners = along.get(key, ())
        if not partners:
            continue
        shares = choose_shares(node.args[0].spec, reduced_dims(node), options)
        if shares != 0 and _reads_along(node, partners, sources):
            result[node] = shares
    return result


def _rows_of(node: Node) -> tuple[tuple[object, ...] | None, bool]:
    """Device, number and length of the rows in which a reduction's operand lies, and whether it
    reduces these; None if it does neither that nor reduce columns.
    """
    spec, dims = node.args[0].spec, reduced_dims(node)
    inside = [d for d in range(spec.ndim) if d in dims and spec.shape[d] != 1]
    outside = [d for d in range(spec.ndim) if d not in dims and spec.shape[d] != 1]
    if not inside or not outside or 0 in spec.shape:
        return None, False
    if any(hint_of(spec.stride[d]) <= 0 for d in (*inside, *outside)):
        return None, False

    def count(dims: list[int]) -> Size:
        total: Size = 1
        for d in dims:
            total = spec.shape[d] * total
        return total

    def span(dims: list[int]) -> tuple[int, int]:
        strides = [hint_of(spec.stride[d]) for d in dims]
        return min(strides), max(strides)

    if span(inside)[1] < span(outside)[0]:
        return (spec.device, count(outside), count(inside)), True
    if span(outside)[1] < span(inside)[0]:
        return (spec.device, count(inside), count(outside)), False
    return None, False


def _reads_along(node: Node, partners: list[Node], sources: dict[Value, int]) -> bool:
    """Whether some partner, which does not depend on the reduction, reads elements that it reads,
    or that what it reads is computed from.
    """
    own = sources[node.args[0]]
    return any(
        own & sources[partner.args[0]] and not _depends(partner, node) for partner in partners
    )


def _elementwise_sources(graph: Graph) -> dict[Value, int]:
    """For each Value the set, as bits, of itself and all of as many elements that it is computed
    from, element by element.
    """
    result: dict[Value, int] = {}
    for value in graph.inputs:
        if isinstance(value, Value):
            result[value] = _bit(value, len(result))
    for node in graph.nodes:
        elementwise = isinstance(node.op, Prim) and node.op.kind in (Kind.POINTWISE, Kind.VIEW)
        for out in node.outputs:
            if out is None:
                continue
            bits = _bit(out, len(result))
            if elementwise:
                elements = hint_of(out.spec.numel)
                for value in node.operands():
                    if hint_of(value.spec.numel) == elements:
                        bits |= result[value]
            result[out] = bits
    return result


def _bit(value: Value, number: int) -> int:
    return 0 if _is_broadcast(value) else 1 << number


def _is_broadcast(value: Value) -> bool:
    """Whether a value repeats elements: it is no memory that is worth sharing."""
    spec = value.spec
    return any(
        stride == 0 and size != 1 for size, stride in zip(spec.shape, spec.stride, strict=True)
    )


def _depends(node: Node, earlier: Node) -> bool:
    """Whether a node needs the result of another."""
    seen: set[Node] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if node is earlier:
            return True
        if node not in seen:
            seen.add(node)
            pending += [v.producer for v in node.operands() if v.producer is not None]
    return False


def lower_column_reduction(nests: Nests, node: Node, shares: Size) -> None:
    """Append the nest of the shares' partial results, and that of the result."""
    out, x = result_of(node), node.args[0]
    dims = reduced_dims(node)
    kind = REDUCTIONS[node.op.name]
    partial = Value(f"{out.name}_shares", _partial_spec(out.spec, shares))
    rows, reduced = nests.axes(
        [x.spec.shape[d] for d in dims], [x.spec.stride[d] for d in dims], "i"
    )
    columns, kept = nests.axes(out.spec.shape, out.spec.stride, "r")
    elements = nests.elements(rows + columns, out.spec.device)
    inner, outer = iter(kept), iter(reduced)
    index = tuple(next(outer) if d in dims else next(inner) for d in range(x.spec.ndim))
    value = elements.element(x, index)
    elements.labels[node.op.name] = None
    name = elements.builder.reduce_columns(kind, value, out.spec.dtype)
    point = (SHARE, *kept)
    nest = nests.finish(
        elements, nests.make(partial), partial.spec, point, name, rows, columns, node.where
    )
    nest.shares = _as_integer(nests.sizes.convert(shares))

    outer_axes, kept = nests.axes(out.spec.shape, out.spec.stride, "i")
    inner_axes, (number,) = nests.axes((shares,), (out.spec.numel,), "r")
    elements = nests.elements(outer_axes + inner_axes, out.spec.device)
    read = elements.element(partial, (number, *kept))
    elements.labels[node.op.name] = None
    name = elements.builder.reduce(kind, read, out.spec.dtype) if inner_axes else read
    nests.finish(
        elements, nests.make(out), out.spec, kept, name, outer_axes, inner_axes, node.where
    )


def _partial_spec(out: Spec, shares: Size) -> Spec:
    """The Spec of the results of shares, of shape (shares, *the result's)."""
    return Spec.of(
        (shares, *out.shape),
        stride=(out.numel, *out.stride),
        dtype=out.dtype,
        device=out.device,
    )


def _as_integer(size: sympy.Expr) -> int | sympy.Expr:
    return int(size) if size.is_Integer else size
