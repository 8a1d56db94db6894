"""Partition a joint graph into a forward and a backward graph.

    joint(x, w, tangent) {                forward(x, w) { a = mm(x, w); y = tanh(a); return (y,) }
      a = mm(x, w)                   ->   backward(x, w, y, tangent) { ... }
      y = tanh(a)
      ... gradients ...
      return (y, grad_x, grad_w)
    }

What does not depend on a tangent may run in the forward and be saved, or run (again) in the
backward. "save_all" saves all that the backward reads, as eager does. "min_cut" finds the cheapest
set to save by a minimum cut, where `recompute.py` says what may be computed twice. Neither saves
the inside of a checkpointed region (`checkpointed.py`). Calls repeated in the backward stand right
before their first use there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau_autograd.checkpointed import inside_regions
from flambeau_autograd.functionalize import dense_order
from flambeau_autograd.memory_budget import within_budget
from flambeau_autograd.operators import computed_from, happens_once, memory_of
from flambeau_autograd.reasons import TrainingOnlyMutation
from flambeau_autograd.recompute import saved_by_minimum_cut, size_in_bytes
from flambeau_autograd.unalias_outputs import cloned
from flambeau_prims.flex_attention import values_of_scores
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.symbols import missing_symbols

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flambeau_autograd.options import AutogradOptions
    from flambeau_prims.sizes import SizeEnv


@dataclass
class Partition:
    """A forward and a backward graph.

    `forward.outputs` is the joint graph's forward outputs, then the saved Values that are neither
    inputs nor outputs. `backward.inputs` is the saved Values, the saved sizes, then the tangents
    that are read. `saved[i]` says where backward input i comes from: ("input", n), ("output", n) of
    the forward graph, ("size", symbol) or ("tangent", n).
    """

    forward: Graph
    backward: Graph
    saved: list[tuple[str, Any]]


@dataclass
class _Joint:
    """A joint graph with its parts separated."""

    graph: Graph
    inputs: list[Any]
    tangents: list[Any]
    results: list[Any]
    gradients: list[Any]
    after_tangents: set[Value] = field(default_factory=set)

    def is_after(self, node: Node) -> bool:
        """Whether a call is the backward's alone: it reads a tangent, or happens once, there."""
        return not self.after_tangents.isdisjoint(node.outputs) or (
            node.in_backward and happens_once(node)
        )


def partition(
    graph: Graph,
    inputs: int,
    forward_outputs: int,
    options: AutogradOptions,
    writable: Iterable[Value] = (),
) -> Partition:
    """Part a functional joint graph of `inputs` forward inputs (tangents follow) and
    `forward_outputs` forward outputs.

    `writable` are inputs and outputs that the caller may overwrite between forward and backward,
    besides those of `graph.writes`: the backward reads copies of them.
    """
    joint = _Joint(
        graph,
        graph.inputs[:inputs],
        graph.inputs[inputs:],
        graph.outputs[:forward_outputs],
        graph.outputs[forward_outputs:],
    )
    joint.after_tangents = _backward_values(graph, joint.tangents)
    forward_nodes = _forward_nodes(joint)
    wanted = _read_by_backward(joint)
    written = {target for target, _ in graph.writes} | {memory_of(value) for value in writable}
    inside = inside_regions(graph, forward_nodes, joint.after_tangents, joint.results)
    # A score for each pair of positions is never stored.
    inside |= values_of_scores(graph) - joint.after_tangents
    if options.partition == "save_all":
        saved = _frontier(joint, forward_nodes, wanted, inside)
    else:
        saved = saved_by_minimum_cut(
            graph,
            joint.inputs,
            joint.results,
            forward_nodes,
            joint.after_tangents,
            wanted,
            written,
            inside,
            options,
        )
        if options.activation_memory_budget < 1:
            budget = options.activation_memory_budget
            ends = (joint.inputs, joint.results)
            saved = within_budget(graph, saved, *ends, wanted, written, budget)
    return _build(joint, _kept_from_writes(joint, saved, written, options.decompose), forward_nodes)


def _backward_values(graph: Graph, tangents: Iterable[Value]) -> set[Value]:
    """Values that are computed from tangents, or from what the backward draws."""
    result = set(tangents)
    for node in graph.nodes:
        draws = node.in_backward and happens_once(node)
        if draws or not result.isdisjoint(node.operands()):
            result.update(out for out in node.outputs if out is not None)
    return result


def _forward_nodes(joint: _Joint) -> list[Node]:
    """The calls for the forward's results and writes, and its random draws and checks."""
    live = {out for out in joint.results if isinstance(out, Value)}
    live.update(value for _, value in joint.graph.writes)
    kept = []
    for node in reversed(joint.graph.nodes):
        once = happens_once(node) and not joint.is_after(node)
        if once or not live.isdisjoint(node.outputs):
            live.update(node.operands())
            kept.append(node)
    return kept[::-1]


def _read_by_backward(joint: _Joint) -> dict[Value, None]:
    """Values free of tangents that the backward's calls read, or that are gradients."""
    result: dict[Value, None] = {}
    for node in joint.graph.nodes:
        if joint.is_after(node):
            result.update(
                (value, None) for value in node.operands() if value not in joint.after_tangents
            )
    for out in joint.gradients:
        if isinstance(out, Value) and out not in joint.after_tangents:
            result[out] = None
    return result


def _frontier(
    joint: _Joint, forward_nodes: list[Node], wanted: Iterable[Value], inside: set[Value]
) -> list[Value]:
    """The Values of the forward, outside `inside`, that `wanted` ones are or are computed from."""
    available = set(joint.inputs)
    for node in forward_nodes:
        available.update(out for out in node.outputs if out not in inside)
    return computed_from(wanted, available.__contains__)[0]


# Building the two graphs


def _kept_from_writes(
    joint: _Joint, saved: list[Value], written: set[Value], primitive: bool
) -> dict[Value, Value]:
    """For each saved Value what the forward returns: a copy if its memory is `written`."""
    copies = {}
    for value in saved:
        copies[value] = value
        if memory_of(value) in written:
            if dense_order(value.spec) is None:
                raise TrainingOnlyMutation(
                    f"{value.name}, which the backward reads, is written to and has gaps in memory"
                )
            copies[value] = cloned(joint.graph.nodes, value, primitive)
    return copies


def _build(joint: _Joint, copies: dict[Value, Value], forward_nodes: list[Node]) -> Partition:
    graph = joint.graph
    saved = list(copies)
    forward_nodes = _with_producers(joint, forward_nodes, copies.values())
    places: dict[Value, tuple[str, Any]] = {}
    for position, out in enumerate(joint.results):
        if isinstance(out, Value):
            places.setdefault(out, ("output", position))
    for position, value in enumerate(joint.inputs):
        if isinstance(value, Value):
            places[value] = ("input", position)
    outputs = list(joint.results)
    # In the order of the backward's inputs: inputs, then outputs, then intermediates.
    saved = sorted(saved, key=lambda value: places.get(copies[value], ("saved", 0)))
    sources: list[tuple[str, Any]] = []
    for value in saved:
        kept = copies[value]
        if kept not in places:
            places[kept] = ("output", len(outputs))
            outputs.append(kept)
        sources.append(places[kept])
    forward = Graph(
        list(joint.inputs),
        forward_nodes,
        outputs,
        list(graph.writes),
        graph.env,
        "forward",
        graph.write_counts,
        private_outputs=len(outputs) - len(joint.results),
    )

    body = _backward_nodes(joint, set(saved))
    read = {value for node in body for value in node.operands()}
    read.update(out for out in joint.gradients if isinstance(out, Value))
    tangents = [(position, value) for position, value in enumerate(joint.tangents) if value in read]
    inputs = [*saved, *(value for _, value in tangents)]
    backward = copied(body, inputs, joint.gradients, graph.env)
    symbols = missing_symbols(backward)
    backward.inputs[len(saved) : len(saved)] = symbols
    sources += [("size", symbol) for symbol in symbols]
    sources += [("tangent", position) for position, _ in tangents]
    return Partition(forward, backward, sources)


def _with_producers(joint: _Joint, forward_nodes: list[Node], saved: Iterable[Value]) -> list[Node]:
    """The forward's calls in the joint graph's order, and those that only saved Values need, right
    behind what they read: there they repeat where equal layers do.
    """
    calls = set(forward_nodes)
    needed = set(calls)
    pending = [value.producer for value in saved if value.producer is not None]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(
                value.producer for value in node.operands() if value.producer is not None
            )
    place: dict[Node, tuple[int, int]] = {}
    for index, node in enumerate(joint.graph.nodes):
        if node in calls:
            place[node] = index, index
        elif node in needed:
            producers = [value.producer for value in node.operands()]
            read = [place[producer][0] for producer in producers if producer is not None]
            place[node] = max(read, default=-1), index
    return sorted(needed, key=place.__getitem__)


def _backward_nodes(joint: _Joint, saved: set[Value]) -> list[Node]:
    """The calls of the backward in order; a repeated one is right before its first reader."""
    live = {out for out in joint.gradients if isinstance(out, Value)}
    after = []
    for node in reversed(joint.graph.nodes):
        if joint.is_after(node) and (happens_once(node) or not live.isdisjoint(node.outputs)):
            live.update(node.operands())
            after.append(node)
    order: dict[Node, None] = {}
    for node in reversed(after):
        _repeat(node.operands(), saved, order)
        order[node] = None
    _repeat((out for out in joint.gradients if isinstance(out, Value)), saved, order)
    return list(order)


def _repeat(values: Iterable[Value], saved: set[Value], order: dict[Node, None]) -> None:
    """Add to `order` the calls that compute `values` from saved ones, operands first."""
    pending = [
        value.producer for value in values if value not in saved and value.producer is not None
    ]
    while pending:
        node = pending[-1]
        if node in order:
            pending.pop()
            continue
        first = [
            value.producer
            for value in node.operands()
            if value not in saved and value.producer is not None and value.producer not in order
        ]
        if first:
            pending.extend(first)
        else:
            order[node] = None
            pending.pop()


def copied(
    nodes: Iterable[Node], inputs: Iterable[Any], gradients: Iterable[Any], env: SizeEnv | None
) -> Graph:
    """A backward graph with its own Values and Nodes, since a Value has one producer."""
    own = {
        value: Value(value.name, value.spec) if isinstance(value, Value) else value
        for value in inputs
    }
    result = []
    mine_of = own.__getitem__
    for node in nodes:
        kwargs = map_values(node.kwargs, mine_of) if node.kwargs else {}
        copy = Node(node.op, map_values(node.args, mine_of), kwargs, (), node.where)
        outputs: list[Value | None] = []
        for out in node.outputs:
            if out is None:
                outputs.append(None)
                continue
            # A call may be repeated for one of its results while another one is saved.
            name = f"{out.name}_repeated" if out in own else out.name
            mine = Value(name, out.spec, copy)
            own.setdefault(out, mine)
            outputs.append(mine)
        copy.outputs = tuple(outputs)
        result.append(copy)
    own_gradients = [own[out] if isinstance(out, Value) else out for out in gradients]
    return Graph([own[value] for value in inputs], result, own_gradients, [], env, "backward")


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that the forward keeps for the backward: its name in the graphs, the operator and
    the user's line that made it, and its bytes at the traced sizes.
    """

    name: str
    operator: str
    line: str
    bytes: int


@dataclass(frozen=True)
class PartitionSummary:
    """What the forward saves for the backward beyond its inputs, and the operators of the calls
    that the backward recomputes. As text it is one line:

    saves 2 tensors (4,096 bytes), recomputes 3 calls (2 mul, 1 exp)
    """

    saved: tuple[SavedTensor, ...]
    recomputed: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        calls = ", ".join(f"{count} {name}" for name, count in self.recomputed)
        total = sum(count for _, count in self.recomputed)
        size = sum(tensor.bytes for tensor in self.saved)
        return (
            f"saves {_count(len(self.saved), 'tensor')} ({size:,} bytes), "
            f"recomputes {_count(total, 'call')}" + (f" ({calls})" if calls else "")
        )


def summarize(part: Partition) -> PartitionSummary:
    """What a partition saves and recomputes."""
    saved = dict.fromkeys(position for kind, position in part.saved if kind == "output")
    outputs = dict.fromkeys(part.forward.outputs[position] for position in saved)
    values = [value for value in outputs if isinstance(value, Value)]
    # Values keep their names in both graphs.
    computed = {out.name for node in part.forward.nodes for out in node.outputs if out is not None}
    repeated = Counter(
        str(node.op).split(".")[1]
        for node in part.backward.nodes
        if any(out is not None and out.name in computed for out in node.outputs)
    )
    return PartitionSummary(tuple(map(_saved, values)), tuple(repeated.most_common()))


def _saved(value: Value) -> SavedTensor:
    node = value.producer
    operator, line = ("input", "") if node is None else (str(node.op), str(node.where))
    return SavedTensor(value.name, operator, line, size_in_bytes(value))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
