"""Add gradients of scores up inside the kernels of attention.

    s = prims.sum(slopes, (0,)); u = prims.unsqueeze(s, 0)              (1, H, L, S)
    m = prims.mul(u, distance); g = prims.index_put(zeros, [head, i - j], m, True)
    ->  m = prims.mul(slopes, distance); g = flambeau.flex_scatter_add(m, place, zeros)

These are the gradients of tensors that a score function reads (a bias by head or by relative
position). Sums of slopes, views and multiples of such sums are followed up to what puts them into
a tensor; what else reads a sum reads one of the kernel's. Casts between them round no more.

Relies on `values_of_scores`. Sums are atomic additions, in any order, so nothing is rewritten where
algorithms are to be deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import Builder
from flambeau_prims.flex_attention import (
    EAGER,
    READERS,
    flex_scatter_add,
    flex_slopes,
)
from flambeau_prims.graph import Graph, Node, Value, map_values, values_in
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.spec import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

_LINEAR = frozenset({"mul", "div", "neg", "cast"})


@dataclass(frozen=True, slots=True)
class _Sum:
    """A tensor computed as a sum of scores over some dims, before it has memory.

    `scores` has one element for each score; `dims` names the dim of `scores` that each dim of the
    tensor is, ascending, or None for a dim of size 1.
    """

    scores: Value
    dims: tuple[int | None, ...]


def scatter_scores(graph: Graph) -> None:
    """Rewrite sums of slopes, in place."""
    if torch.are_deterministic_algorithms_enabled():
        return
    if any(
        node.op is flex_slopes and node.outputs[0] is not None
        and node.outputs[0].spec.device.type == "cuda"
        for node in graph.nodes
    ):  # fmt: skip
        _Rewriter(graph).run()


class _Rewriter:
    """Walks the graph once; `sums` are the Values that have no memory so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.b = Builder(self.nodes, (value.name for value in graph.users()))
        self.slopes: set[Value] = set()
        self.sums: dict[Value, _Sum] = {}
        self.new: dict[Any, Any] = {}
        """What stands for a Value now."""

    def run(self) -> None:
        graph = self.graph
        for node in graph.nodes:
            self.b.line = node.where
            if not self.follow(node):
                scores = READERS.get(node.op, ())
                for value in values_in(
                    [arg for at, arg in enumerate(node.args) if at not in scores]
                ):
                    self.store(value)
                node.args = map_values(node.args, lambda x: self.new.get(x, x))
                node.kwargs = map_values(node.kwargs, lambda x: self.new.get(x, x))
                self.nodes.append(node)
        for value in graph.live_at_exit():
            self.store(value)
        graph.nodes = self.nodes
        graph.outputs = [
            self.new.get(out, out) if isinstance(out, Value) else out for out in graph.outputs
        ]
        graph.writes = [(target, self.new.get(value, value)) for target, value in graph.writes]

    def follow(self, node: Node) -> bool:
        """Whether a node's result is known as slopes or as a sum of such."""
        if node.op is flex_slopes:
            self.slopes.update(out for out in node.outputs if out is not None)
            return False
        if not isinstance(node.op, Prim) or node.op in EAGER:
            return False
        (out,) = node.outputs
        of = [value for value in node.operands() if value in self.sums or value in self.slopes]
        if not of or out is None:
            return False
        if all(value in self.slopes for value in of) and node.op.kind is Kind.POINTWISE:
            self.slopes.add(out)
            return False
        whole = self.scattered(node) if node.op.name == "index_put" else None
        if whole is not None:
            self.new[out] = whole
            return True
        if node.args[0] not in of:
            return False
        one = self.sum_of(node, out)
        if one is not None:
            self.sums[out] = one
        return one is not None

    def known(self, value: Value) -> _Sum:
        """A Value as a sum of scores, over no dim if it is scores."""
        return self.sums.get(value) or _Sum(value, tuple(range(value.spec.ndim)))

    def sum_of(self, node: Node, out: Value) -> _Sum | None:
        """What a node makes of a sum; None if that is no sum of the same kind."""
        one = self.known(node.args[0])
        name = node.op.name
        if name == "sum":
            dropped = node.args[1]
            return _Sum(one.scores, tuple(d for at, d in enumerate(one.dims) if at not in dropped))
        if node.op.kind is Kind.VIEW and name in ("reshape", "unsqueeze", "squeeze"):
            dims = _reshaped(one, node.args[0].spec.shape, out.spec.shape)
            return None if dims is None else _Sum(one.scores, dims)
        if name not in _LINEAR or not out.spec.dtype.is_floating_point:
            return None
        if name == "cast":
            return one
        rest = [self.new.get(x, x) if isinstance(x, Value) else x for x in node.args[1:]]
        if any(x in self.sums or x in self.slopes for x in rest if isinstance(x, Value)):
            return None
        scores = self.b.cast(one.scores, out.spec.dtype)
        factors = [self.spread(x, one) if isinstance(x, Value) else x for x in rest]
        return _Sum(self.b.emit(node.op, scores, *factors), one.dims)

    def spread(self, x: Value, one: _Sum) -> Value:
        """What stands beside a sum, beside each of its scores."""
        shape = one.scores.spec.shape
        used = dict(zip(one.dims, x.spec.shape, strict=True))
        flat = tuple(used.get(dim, 1) for dim in range(len(shape)))
        return self.b.expand(self.b.reshape(x, flat), shape)

    def scattered(self, node: Node) -> Value | None:
        """The result of an `index_put` of a sum."""
        old, indices, source, accumulate = node.args
        into = self.new.get(old, old)
        assert isinstance(into, Value)
        if (
            not accumulate
            or not (source in self.sums or source in self.slopes)
            or into in self.sums or into in self.slopes
            or into.spec.dtype is not torch.float32
            or len(indices) != into.spec.ndim
            or any(
                index is None
                or index in self.sums
                or index.spec.dtype is torch.bool
                or index.spec.shape != source.spec.shape
                for index in indices
            )
        ):  # fmt: skip
            return None
        one = self.known(source)
        parts = [self.spread(self.new.get(index, index), one) for index in indices]
        return self.scatter(one, parts, into)

    def scatter(self, one: _Sum, parts: Sequence[Value], into: Value) -> Value:
        """Scores added to the elements of `into` at places, a part of each for each of its dims."""
        b, shape = self.b, one.scores.spec.shape
        place = b.full(shape, 0, torch.int64, into.spec.device)
        for part, size, stride in zip(
            parts, into.spec.shape, contiguous_stride(into.spec.shape), strict=True
        ):
            part = b.cast(part, torch.int64)
            wrapped = b.where(b.lt(part, 0), b.add(part, size), part)
            place = b.add(place, b.mul(wrapped, stride))
        scores = b.cast(one.scores, torch.float32)
        out = Value(b.fresh_name(), into.spec.fresh())
        out.producer = Node(flex_scatter_add, (scores, place, into), {}, (out,), b.line)
        self.nodes.append(out.producer)
        return out

    def store(self, value: Value) -> None:
        """Give a sum memory. Slopes stay what they are."""
        one = self.sums.get(value)
        if one is None or value in self.new:
            return
        b, device = self.b, value.spec.device
        shape = one.scores.spec.shape
        kept = [(dim, size) for dim, size in zip(one.dims, value.spec.shape, strict=True)
                if dim is not None]  # fmt: skip
        parts = []
        for dim, size in kept:
            flat = tuple(size if d == dim else 1 for d in range(len(shape)))
            points = b.iota(size, 0, 1, torch.int64, device)
            parts.append(b.expand(b.reshape(points, flat), shape))
        into = b.full(tuple(size for _, size in kept), 0.0, torch.float32, device)
        whole = b.reshape(self.scatter(one, parts, into), value.spec.shape)
        self.new[value] = b.cast(whole, value.spec.dtype)


def _reshaped(one: _Sum, old: Sequence[Size], new: Sequence[Size]) -> tuple[int | None, ...] | None:
    """The dims of a sum behind a reshape that only adds or drops dims of size 1."""
    left = [(dim, size) for dim, size in zip(one.dims, old, strict=True) if not _is_one(size)]
    dims: list[int | None] = []
    for size in new:
        if _is_one(size):
            dims.append(None)
            continue
        if not left or not sizes.eq(left[0][1], size):
            return None
        dims.append(left.pop(0)[0])
    return None if left else tuple(dims)


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1
