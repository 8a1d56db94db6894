"""Merge products of one matrix with several frozen ones: the projections to queries, keys and
values, the gate and the other half of a gated layer.

    q = aten.mm.default(x, v)          w = prims.cat([v, u], 1)       (computed once, `freezing`)
    k = aten.mm.default(x, u)    ->    y = aten.mm.default(x, w)
                                       q = prims.slice(y, 1, 0, 64)
                                       k = prims.slice(y, 1, 64, 128)

For few rows, where a product takes as long as reading its weights and starting. The merged weights
are kept beside those of the caller. The results have gaps between their rows. Views of them follow;
what would give another layout because of it reads a copy without gaps. Products whose memory leaves
the graph stay.
"""

from __future__ import annotations

from typing import Any

import torch

from flambeau_autograd.operators import Work, memory_of, work
from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.operator_facts import READS_MEMORY
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_contiguous

aten = torch.ops.aten

MOST_ROWS_OF_CPU = 64
"""With more rows, one product takes as long as several."""
MOST_STEPS_OF_GPU = 3 << 30
"""Multiplications of one product: with more, a product fills a GPU by itself. Measured on an H200:
512 x 768 x 3 * 768 takes half the time in one product, 4096 x 768 x 3 * 768 four fifths.
"""
_READ_ANY_LAYOUT = (Kind.POINTWISE, Kind.REDUCTION, Kind.INDEX)


def merge_products(graph: Graph, constant: set[Value]) -> None:
    """Merge products by `constant` matrices, in place; adds to `constant`."""
    leaving = {memory_of(value) for value in graph.live_at_exit()}
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        key = _key(node, constant)
        if key is not None and node.outputs[0] not in leaving:
            groups.setdefault(key, []).append(node)
    merged = [nodes for nodes in groups.values() if len(nodes) > 1]
    if merged:
        _Merging(graph, constant).run(merged)


def _key(node: Node, constant: set[Value]) -> Any:
    """What products must share to be one; None for other nodes."""
    if node.op not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    *bias, x, weight = node.args
    (out,) = node.outputs
    rows = x.spec.shape[0]
    if out is None or x in constant or weight not in constant or not isinstance(rows, int):
        return None
    if weight.spec.env is not None or not _is_small(rows, weight.spec):
        return None
    if bias and (bias[0] not in constant or bias[0].spec.shape != weight.spec.shape[1:]):
        return None
    if not is_contiguous(out.spec) or 0 in out.spec.shape:
        return None
    return (node.op, x, weight.spec.stride[0] == 1)


def _late(value: Value, node: Node, known: set[Value]) -> bool:
    """Whether a constant that a product reads is not computed before all products."""
    return value is not node.args[-2] and value not in known


def _is_small(rows: int, weight: Spec) -> bool:
    """Whether a product does not keep the device busy by itself."""
    if weight.device.type == "cpu":
        return rows <= MOST_ROWS_OF_CPU
    return weight.device.type == "cuda" and rows * weight.numel <= MOST_STEPS_OF_GPU  # type: ignore[operator]


class _Merging:
    """The merging in one graph; `old` has the Specs of Values that got gaps."""

    def __init__(self, graph: Graph, constant: set[Value]) -> None:
        self.graph = graph
        self.constant = constant
        self.old: dict[Value, Spec] = {}
        self.nodes: list[Node] = []
        self.builder = Builder(self.nodes, (value.name for value in graph.users()))

    def run(self, groups: list[list[Node]]) -> None:
        # Weights that later products read are wanted by the first of them.
        known = self.constants_first()
        groups = [
            [node for node in nodes if not any(_late(value, node, known) for value in node.args)]
            for nodes in groups
        ]
        groups = [nodes for nodes in groups if len(nodes) > 1]
        first = {nodes[0]: nodes for nodes in groups}
        gone = {node for nodes in groups for node in nodes}
        for node in self.graph.nodes:
            if node in first:
                self.merge(first[node])
            elif node not in gone:
                self.follow(node)
        self.graph.nodes = self.nodes

    def constants_first(self) -> set[Value]:
        """Move what computes constants to the front of the graph; returns what stands there."""
        known = {value for value in self.graph.inputs if value in self.constant}
        early: list[Node] = []
        late: list[Node] = []
        for node in self.graph.nodes:
            outputs = [value for value in node.outputs if value is not None]
            operands = list(node.operands())
            movable = any(value in self.constant for value in outputs) or (
                isinstance(node.op, Prim) and work(node.op) is not Work.ONCE
            )
            if movable and all(value in known for value in operands):
                known.update(outputs)
                early.append(node)
            else:
                late.append(node)
        self.graph.nodes = early + late
        return {value for value in known if isinstance(value, Value)}

    def merge(self, nodes: list[Node]) -> None:
        b = self.builder
        b.line = nodes[0].where
        start = len(self.nodes)
        weights = [node.args[-1] for node in nodes]
        if weights[0].spec.stride[0] == 1:
            rows = [b.permute(weight, (1, 0)) for weight in weights]
            weight = b.permute(b.cat(rows, 0), (1, 0))
        else:
            weight = b.cat(weights, 1)
        operands = [nodes[0].args[-2], weight]
        if nodes[0].op is aten.addmm.default:
            operands.insert(0, b.cat([node.args[0] for node in nodes], 0))
        self.constant.update(v for new in self.nodes[start:] for v in new.outputs if v)
        rows_of_x, width = operands[-2].spec.shape[0], weight.spec.shape[1]
        (one,) = nodes[0].outputs
        assert one is not None
        call = Node(nodes[0].op, tuple(operands), {}, (), nodes[0].where)
        whole = Value(b.fresh_name(), one.spec.fresh((rows_of_x, width)), call)
        call.outputs = (whole,)
        self.nodes.append(call)
        begin: Any = 0
        for node in nodes:
            (out,) = node.outputs
            assert out is not None
            end = begin + out.spec.shape[1]
            part = b.slice(whole, 1, begin, end, 1)
            self.old[out] = out.spec
            out.spec, out.producer = part.spec, part.producer
            assert out.producer is not None
            out.producer.outputs = (out,)
            begin = end

    def follow(self, node: Node) -> None:
        """Append a node whose operands may have got gaps."""
        moved = [value for value in dict.fromkeys(node.operands()) if value in self.old]
        if moved and not self.takes(node):
            copies = {value: self.copy(value) for value in moved}
            node.args, node.kwargs = (
                map_values(arg, lambda value: copies.get(value, value))
                for arg in (node.args, node.kwargs)
            )
        self.nodes.append(node)

    def takes(self, node: Node) -> bool:
        """Whether a node reads operands with gaps, and gives results as before or views."""
        if isinstance(node.op, Prim):
            if node.op.kind in _READ_ANY_LAYOUT or node.op is prims.clone:
                return True
            if node.op.kind is not Kind.VIEW or node.op is prims.as_strided:
                return False
            (out,) = node.outputs
            assert out is not None
            spec = node.op.infer(*(map_values(node.args, lambda value: value.spec)))
            if spec is not out.spec:
                self.old[out] = out.spec
                out.spec = spec
            return True
        if node.op in READS_MEMORY or work(node.op) is Work.ONCE:
            return False
        args, kwargs = (
            map_values(arg, lambda value: value.spec) for arg in (node.args, node.kwargs)
        )
        try:
            result = infer(node.op, args, kwargs)
        except RuntimeError:
            return False
        specs = list(result) if isinstance(result, (tuple, list)) else [result]
        given = [None if out is None else out.spec for out in node.outputs]
        return len(specs) == len(given) and all(
            mine is None or mine is its for mine, its in zip(given, specs, strict=True)
        )

    def copy(self, value: Value) -> Value:
        """A Value as it was, without gaps."""
        node = Node(prims.clone, (value,), {}, (), self.builder.line)
        copied = Value(self.builder.fresh_name(), self.old[value].replace(offset=0), node)
        node.outputs = (copied,)
        self.nodes.append(node)
        return copied
