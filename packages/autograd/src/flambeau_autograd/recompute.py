"""What to save for the backward: a minimum cut between what the forward has and what the backward
reads.

Each Value v free of tangents is an edge of capacity cost(v); cutting it means saving v. An edge of
infinite capacity from each operand to the result lets the backward recompute the result; a Value
that must not be recomputed hangs on the source instead. Never recomputed are separate kernels
(products, convolutions, attention, sorting, gathers), random draws, reductions to a fraction of
their operand, and, because recomputing would cost more time than reading:

- what a HEAVY call of the backward reads: it is in memory there anyhow;
- what the forward reads over a span of more than `options.recompute_span` calls, or in front of a
  separate kernel and behind it, as a residual connection does: it stood in memory there anyhow;
- what several calls of the forward read, if it is computed from random words: it stood in memory
  there, and words cost as much as dozens of additions;
- what joins overlapping slices of one Value: pooling reads a window for each element;
- comparisons for equality of what kernels compute: a kernel of the backward may round otherwise
  than the one that found the extreme;
- the end of a chain of more than `options.recompute_chain` fusible calls whose results are floats.

In a region that the program checkpointed it is the other way round: its inside has infinite
capacity, and is computed again, but for such comparisons.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.min_cut import INFINITE, FlowNetwork
from flambeau_autograd.operators import Work, memory_of, moves_nothing, work
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.per_operator import per_operator
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flambeau_autograd.options import AutogradOptions

aten = torch.ops.aten

_EQUALITIES = {prims.eq, prims.ne}
_GATHERS = {prims.gather, prims.index, prims.cat, aten.cat.default, aten.stack.default}
_INPUT_COST = 1  # inputs are alive anyway, but one fewer is tidier


def saved_by_minimum_cut(
    graph: Graph,
    inputs: list[Any],
    results: list[Any],
    forward_nodes: Iterable[Node],
    after_tangents: set[Value],
    wanted: Iterable[Value],
    written: set[Value],
    inside: set[Value],
    options: AutogradOptions,
) -> list[Value]:
    """The Values to save so that the backward can compute `wanted`, in the order of the graph.

    `inputs`, `results` and `forward_nodes` are those of the forward alone; `written` is memory that
    is overwritten before the backward reads it; `inside` are Values that must not be saved.
    """
    network = _Network(
        graph, inputs, results, set(forward_nodes), after_tangents, written, inside, options
    )
    for value in wanted:
        network.want(value)
    return network.cut()


def size_in_bytes(value: Value) -> int:
    """The bytes of a Value's elements, for the sizes seen while tracing."""
    return hint_of(value.spec.numel) * value.spec.dtype.itemsize


def compares_extremes(node: Node) -> bool:
    """Whether a call may compare elements with their extreme; x != x only finds NaN."""
    return _finds_equality(node.op) and len(set(node.operands())) > 1


@per_operator
def _finds_equality(op: Any) -> bool:
    return op in _EQUALITIES


@per_operator
def _gathers(op: Any) -> bool:
    return op in _GATHERS


@per_operator
def _stays(op: Any) -> bool:
    """Whether a call's results are in memory, and what it reads: it is a separate kernel."""
    return work(op) in (Work.HEAVY, Work.ONCE)


@per_operator
def _costs_nothing(op: Any) -> bool:
    return work(op) in (Work.VIEW, Work.FACTORY)


@per_operator
def _is_heavy(op: Any) -> bool:
    return work(op) is Work.HEAVY


class _Network:
    """The flow network: Value i's edge is (2i, 2i + 1); 0 and 1 are source and sink."""

    def __init__(
        self,
        graph: Graph,
        inputs: list[Any],
        results: list[Any],
        forward_nodes: set[Node],
        after_tangents: set[Value],
        written: set[Value],
        inside: set[Value],
        options: AutogradOptions,
    ) -> None:
        self._forward = forward_nodes
        self._options = options
        self._after = after_tangents
        self._written = written
        self._inside = inside
        nodes = [node for node in graph.nodes if after_tangents.isdisjoint(node.outputs)]
        self._values = [value for value in inputs if isinstance(value, Value)]
        self._inputs = set(self._values)
        self._returned = {out for out in results if isinstance(out, Value)}
        self._values += [out for node in nodes for out in node.outputs if out is not None]
        self._number = {value: index + 1 for index, value in enumerate(self._values)}
        self._flow = FlowNetwork(2 * len(self._values) + 2)
        self._users = graph.users()
        self._order = {node: position for position, node in enumerate(graph.nodes)}
        self._heavy_before = list(
            accumulate(_is_heavy(node.op) and node in forward_nodes for node in graph.nodes)
        )
        """Of each call, how many heavy calls of the forward are there up to it."""
        self._depth: dict[Value, int] = {}
        self._slices: dict[Value, frozenset[Value]] = {}
        """The slices that a recomputed Value reads of others."""
        self._drawn: set[Value] = set()
        """Recomputed Values that take random words."""
        for value in self._inputs:
            self._flow.edge(0, 2 * self._number[value], INFINITE)
            self._flow.edge(2 * self._number[value], 2 * self._number[value] + 1, self._cost(value))
        for node in nodes:
            self._add(node)

    def want(self, value: Value) -> None:
        """Let the backward read `value`."""
        self._flow.edge(2 * self._number[value] + 1, 1, INFINITE)

    def cut(self) -> list[Value]:
        """The Values whose edges the minimum cut severs."""
        _, after = self._flow.minimum_cut(0, 1)
        return [
            v
            for v in self._values
            if after[2 * self._number[v] + 1] and not after[2 * self._number[v]]
        ]

    def _add(self, node: Node) -> None:
        kept = [out for out in node.outputs if out is not None]
        chain = max((self._depth.get(value, 0) for value in node.operands()), default=0)
        for out in kept:
            # Masks and positions cost little to compute, and much to save, one for each window.
            depth = chain + _is_number(out)
            begin, end = 2 * self._number[out], 2 * self._number[out] + 1
            if out in self._inside and not self._is_mask_of_extremes(node):
                self._flow.edge(begin, end, INFINITE)
                for value in dict.fromkeys(node.operands()):
                    self._flow.edge(2 * self._number[value] + 1, begin, INFINITE)
                continue
            self._flow.edge(begin, end, self._cost(out))
            # What a region gives to others is kept as eager keeps it, or regions would be computed
            # again one from another.
            slices = self._slices_read(node, out)
            drawn = node.op is prims.random_words or not self._drawn.isdisjoint(node.operands())
            stands = drawn and _is_number(out) and self._has_readers(out)
            if node.region or stands or self._banned(node, out, depth) or _is_window(slices):
                self._flow.edge(0, begin, INFINITE)
                continue
            self._depth[out] = depth
            if drawn:
                self._drawn.add(out)
            if slices:
                self._slices[out] = slices
            for value in dict.fromkeys(node.operands()):
                self._flow.edge(2 * self._number[value] + 1, begin, INFINITE)

    def _has_readers(self, value: Value) -> bool:
        """Whether several calls of the forward read a value."""
        return sum(user in self._forward for user in self._users[value]) > 1

    def _slices_read(self, node: Node, out: Value) -> frozenset[Value]:
        """The slices that `out` is computed from."""
        if node.op is prims.slice:
            return frozenset((out,))
        read = [self._slices[x] for x in node.operands() if x in self._slices]
        return frozenset().union(*read)

    def _cost(self, value: Value) -> int:
        if value in self._inputs:
            # Would have to be copied, since the backward runs after the write.
            return _INPUT_COST if value not in self._written else 1 + size_in_bytes(value)
        memory = memory_of(value)
        if memory is not value:
            # Twice the base, so that the base is saved and the view taken again.
            return 2 * self._cost(memory)
        if value in self._returned and value not in self._written:
            # In memory in any case, and the caller mostly keeps it until the backward.
            return 1 + size_in_bytes(value) // 4
        # What no kernel of the forward leaves in memory costs a write besides the read.
        factor = 1 if self._stands_in_memory(value) else 2
        return 1 + factor * size_in_bytes(value)

    def _stands_in_memory(self, value: Value) -> bool:
        node = value.producer
        if node is not None and _stays(node.op):
            return True
        if node is not None and self._is_read_behind_heavy_calls(node, value):
            return True
        return any(self._reads_memory(user) for user in self._users[value] if user in self._forward)

    def _is_read_behind_heavy_calls(self, node: Node, value: Value) -> bool:
        """Whether the forward reads a value in two kernels or more, with heavy calls between them,
        as a residual connection does.
        """
        places = [self._order[user] for user in self._users[value] if user in self._forward]
        if len(places) < 2:
            return False
        return self._heavy_before[max(places)] > self._heavy_before[min(places)]

    def _in_backward(self, node: Node) -> bool:
        return not self._after.isdisjoint(node.outputs)

    def _reads_memory(self, node: Node) -> bool:
        if moves_nothing(node.op):
            return any(
                self._reads_memory(user)
                for out in node.outputs
                if out is not None
                for user in self._users[out]
            )
        return _stays(node.op)

    def _banned(self, node: Node, out: Value, depth: int) -> bool:
        if _stays(node.op) or _gathers(node.op):
            return True
        if _costs_nothing(node.op):
            return False
        if self._is_mask_of_extremes(node):
            return True
        if work(node.op) is Work.REDUCTION:
            operand = max((size_in_bytes(value) for value in node.operands()), default=0)
            if 4 * size_in_bytes(out) <= operand:
                return True
        if depth > self._options.recompute_chain:
            return True
        users = self._users[out]
        if any(self._heavy_in_backward(user) for user in users):
            return True
        # Kernels that read a widened value read what it is made of: that stands in memory.
        return not _widens(node) and (
            self._span(node, out) > self._options.recompute_span
            or self._is_read_behind_heavy_calls(node, out)
        )

    def _is_mask_of_extremes(self, node: Node) -> bool:
        if not compares_extremes(node):
            return False
        return any(self._is_computed(x) for x in node.operands())

    def _is_computed(self, value: Value) -> bool:
        """Whether a float is what a pointwise kernel computes, not what one only reads."""
        maker = value.producer
        while maker is not None and (moves_nothing(maker.op) or maker.op is prims.cast):
            value = maker.args[0]
            maker = value.producer
        if value in self._inputs or maker is None or not value.spec.dtype.is_floating_point:
            return False
        return work(maker.op) is Work.POINTWISE

    def _span(self, node: Node, out: Value) -> int:
        """Over how many calls the forward reads a value, widened or not."""
        users = list(self._users[out])
        for user in users:
            if _widens(user):
                users += self._users[user.outputs[0]]  # type: ignore[index]
        last = max((self._order[user] for user in users if user in self._forward), default=0)
        return last - self._order[node]

    def _heavy_in_backward(self, node: Node) -> bool:
        """Whether `node` is, or is a view that is read by, a HEAVY call after the tangents."""
        if moves_nothing(node.op):
            return any(
                self._heavy_in_backward(user)
                for out in node.outputs
                if out is not None
                for user in self._users[out]
            )
        return _is_heavy(node.op) and self._in_backward(node)


def _is_number(value: Value) -> bool:
    """Whether a value is neither a mask nor a position."""
    return value.spec.dtype.is_floating_point or value.spec.dtype.is_complex


def _widens(node: Node) -> bool:
    """Whether a call only gives elements a wider dtype."""
    if node.op is not prims.cast:
        return False
    (out,) = node.outputs
    assert out is not None
    return out.spec.dtype.itemsize > node.args[0].spec.dtype.itemsize


def _is_window(slices: frozenset[Value]) -> bool:
    """Whether two of the slices are of one Value and overlap: halves of a gated unit do not."""
    if len(slices) < 2:
        return False
    by_memory: dict[Value, list[dict[int, tuple[int, int]]]] = {}
    for part in slices:
        by_memory.setdefault(memory_of(part), []).append(_ranges(part))
    return any(
        _overlap(a, b)
        for parts in by_memory.values()
        for number, a in enumerate(parts)
        for b in parts[:number]
    )


def _ranges(part: Value) -> dict[int, tuple[int, int]]:
    """By dim, from where to where the slices reach that make a Value of another."""
    result: dict[int, tuple[int, int]] = {}
    while part.producer is not None and part.producer.op is prims.slice:
        part, dim, start, stop, _ = part.producer.args
        result.setdefault(dim, (hint_of(start), hint_of(stop)))
    return result


def _overlap(a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]) -> bool:
    return all(a[d][0] < b[d][1] and b[d][0] < a[d][1] for d in a.keys() & b.keys())
