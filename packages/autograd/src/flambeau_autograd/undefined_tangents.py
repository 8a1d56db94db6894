"""Remove what a backward computes from undefined tangents: the results that no gradient of the loss
reaches.

    backward(w, y, t0, t1) {                    t1 is undefined
      a = prims.mul(t0, 2)                ->    backward_without_1(w, y, t0) {
      b = prims.mul(t1, y)                        a = prims.mul(t0, 2)
      g = prims.add(a, b)                         return (a,)
      return (g,)                               }
    }

Zeros in place of `t1` would give another gradient where `y` is infinite: eager's engine does not
visit the calls of `b`. A Value that is computed from undefined tangents only is absent. The sum of
an absent and a present Value is the latter; another call that reads both gets zeros, as eager's
formulas do (the `cat` in the backward of `split`). A custom Function's backward with several
gradients runs as a whole if one of them is present, and gets zeros for the absent ones
(`Place.function`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.dce import drop_dead_calls
from flambeau_autograd.functionalize import dense_order
from flambeau_autograd.operators import Work, happens_once, work
from flambeau_autograd.substitution import Substitution, begin_with_operand
from flambeau_prims import primitives as prims
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.operator_facts import READS_MEMORY
from flambeau_prims.spec import Spec
from flambeau_prims.symbols import missing_symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

aten = torch.ops.aten


def without_undefined(
    graph: Graph,
    tangents: Sequence[Value],
    undefined: Collection[Value],
    required: Collection[int],
    *,
    primitive: bool,
) -> Graph:
    """Specialise a backward, in place, for `undefined` ones of its `tangents` (its last inputs).

    The result has no inputs for them, and its size inputs stand right before the remaining
    tangents. The outputs whose positions are in `required` are zeros where they are absent; the
    others are None. `primitive`: the graph is one of primitives.
    """
    return _Specialization(graph, tangents, undefined, primitive).run(required)


class _Specialization:
    def __init__(
        self,
        graph: Graph,
        tangents: Sequence[Value],
        undefined: Collection[Value],
        primitive: bool,
    ) -> None:
        self._graph = graph
        self._tangents = tangents
        self._absent = set(undefined)
        self._primitive = primitive
        self._dependent = _dependent_on(tangents, graph.nodes)
        self._read_by = _operands_of_functions(graph.nodes, self._dependent)
        self._runs: dict[int, bool] = {}
        """For each custom Function, whether one of its gradients is present."""
        self._replaced = Substitution()
        self._zeros: dict[Value, Value] = {}
        self._kept: list[Node] = []
        self._pinned = {
            value
            for node in graph.nodes
            if node.op is prims.as_strided or node.op in READS_MEMORY
            for value in node.operands()
        }

    def run(self, required: Collection[int]) -> Graph:
        graph, undefined = self._graph, set(self._absent)
        for node in graph.nodes:
            self._visit(node)
        graph.outputs = [
            out
            if not isinstance(out, Value) or out not in self._absent
            else (self._zeros_like(out) if position in required else None)
            for position, out in enumerate(graph.outputs)
        ]
        graph.nodes = self._kept
        self._replaced.apply_to_exits(graph)
        drop_dead_calls(graph)
        tensors = [
            value for value in graph.inputs if isinstance(value, Value) and value not in undefined
        ]
        graph.inputs = list(tensors)
        first = len(tensors) - (len(self._tangents) - len(undefined))
        graph.inputs[first:first] = missing_symbols(graph)
        return graph

    def _visit(self, node: Node) -> None:
        self._replaced.apply(node)
        read = [value for value in node.operands() if value in self._dependent]
        if not any(value in self._absent for value in read):
            self._kept.append(node)
            return
        runs = self._function_runs(node.function) or happens_once(node)
        if not runs and all(value in self._absent for value in read):
            self._absent.update(out for out in node.outputs if out is not None)
            return
        addend = None if runs else self._only_addend(node)
        if addend is not None and node.outputs[0] is not None:
            self._replaced.replace(node.outputs[0], addend)
            return
        node.args = map_values(node.args, self._present)
        node.kwargs = map_values(node.kwargs, self._present)
        self._kept.append(node)

    def _function_runs(self, function: int) -> bool:
        if not function:
            return False
        if function not in self._runs:
            self._runs[function] = any(
                value not in self._absent for value in self._read_by.get(function, ())
            )
        return self._runs[function]

    def _only_addend(self, node: Node) -> Value | None:
        """The operand that a sum with an absent one amounts to, laid out as the sum."""
        if node.op is not prims.add and node.op is not aten.add.Tensor:
            return None
        out = node.outputs[0]
        one, other = node.args[:2]
        if out is None or out in self._pinned or node.kwargs.get("alpha", 1) != 1:
            return None
        addend = other if isinstance(one, Value) and one in self._absent else one
        if not isinstance(addend, Value):
            return None
        mine, its = addend.spec, out.spec
        same = (mine.shape, mine.stride, mine.dtype, mine.device) == (
            its.shape,
            its.stride,
            its.dtype,
            its.device,
        )
        return addend if same else None

    def _present(self, value: Value) -> Value:
        return self._zeros_like(value) if value in self._absent else value

    def _zeros_like(self, value: Value) -> Value:
        """Zeros with the Spec of an absent Value: those of a view are a view of zeros."""
        known = self._zeros.get(value)
        if known is None:
            producer = value.producer
            if producer is not None and work(producer.op) is Work.VIEW:
                known = self._view_of_zeros(value, producer)
            else:
                known = self._filled(value)
            self._zeros[value] = known
        return known

    def _view_of_zeros(self, value: Value, producer: Node) -> Value:
        args = map_values(producer.args, self._present)
        kwargs = map_values(producer.kwargs, self._present)
        node = Node(producer.op, args, kwargs, (), producer.where)
        results = [
            None if out is None else Value(f"{out.name}_zeros", out.spec, node)
            for out in producer.outputs
        ]
        node.outputs = tuple(results)
        begin_with_operand(node)
        self._kept.append(node)
        result = results[producer.outputs.index(value)]
        assert result is not None
        return result

    def _filled(self, value: Value) -> Value:
        spec, name = value.spec, f"{value.name}_zeros"
        primitive = self._primitive and not spec.dtype.is_complex
        number = torch.zeros((), dtype=spec.dtype).item()

        def full(shape: tuple[Any, ...], name: str) -> Value:
            op, given = aten.full.default, {"dtype": spec.dtype, "device": spec.device}
            if primitive:
                node = Node(prims.full, (shape, number, spec.dtype, spec.device), {})
            else:
                node = Node(op, (list(shape), number), given)
            return self._appended(node, name, spec.fresh(shape))

        row_major = spec.fresh()
        order = dense_order(spec)
        if order is None or row_major.stride == spec.stride:
            return full(spec.shape, name)
        # Row-major in the order of the dims in memory, then permuted.
        base = full(tuple(spec.shape[dim] for dim in order), f"{name}_base")
        dims = [order.index(dim) for dim in range(len(order))]
        stride = tuple(base.spec.stride[dim] for dim in dims)
        node = Node(prims.permute if primitive else aten.permute.default, (base, tuple(dims)), {})
        return self._appended(node, name, spec.fresh(stride=stride))

    def _appended(self, node: Node, name: str, spec: Spec) -> Value:
        value = Value(name, spec, node)
        node.outputs = (value,)
        self._kept.append(node)
        return value


def _dependent_on(tangents: Collection[Value], nodes: Sequence[Node]) -> set[Value]:
    result = set(tangents)
    for node in nodes:
        if any(value in result for value in node.operands()):
            result.update(out for out in node.outputs if out is not None)
    return result


def _operands_of_functions(nodes: Sequence[Node], dependent: set[Value]) -> dict[int, set[Value]]:
    """For each custom Function the gradients that its backward is given."""
    result: dict[int, set[Value]] = {}
    inside: dict[int, set[Value]] = {}
    for node in nodes:
        if node.function:
            own = inside.setdefault(node.function, set())
            result.setdefault(node.function, set()).update(
                value for value in node.operands() if value in dependent and value not in own
            )
            own.update(out for out in node.outputs if out is not None)
    return result
