"""Let values lie in memory as what they are computed from does: leave out copies to another order
of dims that only kernels read, and lay out again what is computed from them.

    r: stride [1024, 256, 16, 1] = prims.clone(c)        (c: stride [1024, 1, 64, 4])
    g: stride [1024, 512, 256, 16, 1] = prims.reshape(r, (1, 2, 2, 16, 16))
    s: f32[1, 2] = prims.sum(g, (2, 3, 4))

      ->

    g: stride [1024, 2, 1, 64, 4] = prims.reshape(c, (1, 2, 2, 16, 16))
    s: f32[1, 2] = prims.sum(g, (2, 3, 4))

A kernel reads such a copy's source in any case. Later stages take the order of loops, and the way
to cut a reduction, from a Value's strides: these must say where the elements are read. What leaves
the graph, and what ATen or an as_strided reads, keeps its strides, and so do the values that it is
a window on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_autograd.functionalize import dense_order, same_layout
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.per_operator import per_operator
from flambeau_prims.primitives import Kind, Prim

if TYPE_CHECKING:
    from flambeau_prims.spec import Size, Spec


def follow_memory_order(graph: Graph) -> Graph:
    """Leave out copies and lay out what is computed from them, in place."""
    if not any(_reorders(node) for node in graph.nodes):
        return graph
    return _Follower(graph).run()


def _reorders(node: Node) -> bool:
    """Whether a node only copies a dense tensor to another order of its dims."""
    if node.op is not prims.clone:
        return False
    x, (out,) = node.args[0], node.outputs
    assert out is not None
    return not same_layout(x.spec, out.spec) and dense_order(x.spec) is not None


class _Follower:
    """`replaced`: the source of each copy left out; `moved`: the Values that have new strides."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fixed = _fixed(graph)
        self.replaced: dict[Value, Value] = {}
        self.moved: set[Value] = set()

    def run(self) -> Graph:
        kept = []
        for node in self.graph.nodes:
            if not self.replaced.keys().isdisjoint(node.operands()):
                node.args, node.kwargs = (
                    map_values(arg, self.source) for arg in (node.args, node.kwargs)
                )
            if self.is_left_out(node):
                continue
            kept.append(node)
            if _reduces(node.op) or not self.moved.isdisjoint(node.operands()):
                self.lay_out(node)
        self.graph.nodes = kept
        return self.graph

    def source(self, value: Value) -> Value:
        """What stands for a Value now."""
        return self.replaced.get(value, value)

    def is_left_out(self, node: Node) -> bool:
        """Leave a copy out if its result may lie elsewhere."""
        if node.op is not prims.clone:
            return False
        x, (out,) = node.args[0], node.outputs
        assert out is not None
        # A copy of an input may be there because the caller writes to the input.
        if out in self.fixed or x.producer is None or not self.is_followed(x, out):
            return False
        self.replaced[out] = x
        self.moved.add(x)
        return True

    def is_followed(self, x: Value, out: Value) -> bool:
        """Whether a copy of x changes no more than the order of dims."""
        return x in self.moved or (
            not same_layout(x.spec, out.spec) and dense_order(x.spec) is not None
        )

    def lay_out(self, node: Node) -> None:
        """Give the result of a node the strides that follow from its operands'."""
        if not isinstance(node.op, Prim):
            return
        (out,) = node.outputs
        assert out is not None
        if out in self.fixed:
            return
        if node.op.kind is Kind.REDUCTION:
            spec = _reduced(node.args[0].spec, out.spec, node.args[1])
        elif node.op.kind in (Kind.POINTWISE, Kind.VIEW) or node.op is prims.clone:
            spec = node.op.infer(*map(_spec_argument, node.args))
        else:
            return
        if (spec.stride, spec.offset) != (out.spec.stride, out.spec.offset):
            out.spec = spec
            self.moved.add(out)


@per_operator
def _reduces(op: Any) -> bool:
    return isinstance(op, Prim) and op.kind is Kind.REDUCTION


def _reduced(x: Spec, out: Spec, dims: Any) -> Spec:
    """The Spec of a reduction's result, its dims in the operand's order."""
    order = dense_order(x)
    if order is None:
        return out
    reduced = (dims,) if isinstance(dims, int) else dims
    kept = [d for d in range(x.ndim) if d not in reduced]
    stride: list[Size] = [1] * out.ndim
    step: Size = 1
    for d in reversed([kept.index(d) for d in order if d in kept]):
        stride[d] = step
        step = step * out.shape[d]
    return out.replace(stride=stride)


def _fixed(graph: Graph) -> set[Value]:
    """The Values that must keep their strides, through views."""
    pending = graph.live_at_exit()
    for node in graph.nodes:
        if not isinstance(node.op, Prim):
            pending += node.operands()
        elif node.op in (prims.as_strided, prims.to_device):
            pending.append(node.args[0])
    result: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in result:
            continue
        result.add(value)
        maker = value.producer
        if maker is not None and isinstance(maker.op, Prim) and maker.op.kind is Kind.VIEW:
            pending.append(maker.args[0])
    return result


def _spec_argument(arg: Any) -> Any:
    if isinstance(arg, Value):
        return arg.spec
    if isinstance(arg, (list, tuple)):
        return tuple([_spec_argument(item) for item in arg])
    return arg
