"""Cut a backward graph into pieces that hand out gradients as soon as they are final.

    backward(x, w, v, t) {                 piece 0 (v, t)     -> g_v, c
      g_v = mm(t, v);  c = tanh(t)   ->    piece 1 (x, w, c)  -> g_w
      g_w = mm(c, x)
      return (g_w, g_v)                    groups: [1], [0]
    }

Whoever reduces gradients over processes begins with `g_v` while `g_w` is computed. A piece gives
the later ones the tensors that they read; views are taken again there. A gradient in memory that a
later piece reads is a copy: its receiver may write to it. A collective is waited for in the piece
that starts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from flambeau_autograd.backward_progress import Piece, Progress
from flambeau_autograd.begun_compiles import begin
from flambeau_autograd.operators import Work, memory_of, work
from flambeau_autograd.recompute import size_in_bytes
from flambeau_autograd.unalias_outputs import cloned
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.operator_facts import communicates
from flambeau_prims.symbols import missing_symbols, symbol_name, symbol_reads

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flambeau_autograd.begun_compiles import Compiler

    Groups: TypeAlias = "tuple[tuple[int, ...], ...]"


def gradient_groups(graph: Graph, counted: Collection[int], limits: Sequence[int]) -> Groups:
    """The gradients (positions among the outputs) that each piece of a backward is to give.

    A group ends where the gradients at the positions `counted` reach its limit in bytes; the last
    limit is that of all further groups.
    """
    last = _last_nodes(graph)
    groups: list[list[int]] = [[]]
    collected = 0
    previous = -1
    for position in sorted(range(len(last)), key=lambda position: (last[position], position)):
        if collected >= limits[min(len(groups), len(limits)) - 1] and last[position] != previous:
            groups.append([])
            collected = 0
        groups[-1].append(position)
        previous = last[position]
        out = graph.outputs[position]
        if position in counted and isinstance(out, Value):
            collected += size_in_bytes(out)
    return tuple(map(tuple, groups))


def _last_nodes(graph: Graph) -> list[int]:
    """For each output the number of the node that computes it; -1 if none does."""
    number = {node: index for index, node in enumerate(graph.nodes)}
    return [
        number[out.producer] if isinstance(out, Value) and out.producer is not None else -1
        for out in graph.outputs
    ]


def cut_backward(graph: Graph, groups: Groups, *, primitive: bool) -> list[Piece]:
    """Cut a backward into one piece for each group of gradients. `primitive`: its calls are
    primitives.
    """
    parts = _parts(graph, groups)
    names = {value: f"{index}" for index, value in enumerate(_values(graph))}
    bodies: list[list[Node]] = []
    wanted: list[list[Value]] = []
    later: set[Value] = set()  # what the pieces behind this one read
    for part, group in zip(reversed(parts), reversed(groups), strict=True):
        outputs = [graph.outputs[position] for position in group]
        shared = {memory_of(value) for value in later}
        for number, out in enumerate(outputs):
            if isinstance(out, Value) and memory_of(out) in shared:
                outputs[number] = cloned(part, out, primitive)
        for position, out in zip(group, outputs, strict=True):
            graph.outputs[position] = out
        body, read = _closed(part, [out for out in outputs if isinstance(out, Value)])
        bodies.append(body)
        wanted.append(read)
        later.update(read)
    pieces: list[Piece] = []
    available = dict.fromkeys(value for value in graph.inputs if isinstance(value, Value))
    wanted.reverse()
    for index, (body, group) in enumerate(zip(reversed(bodies), groups, strict=True)):
        behind = dict.fromkeys(value for read in wanted[index + 1 :] for value in read)
        made = [value for value in behind if value not in available and _is_made(value, body)]
        available.update(dict.fromkeys(made))
        outputs = [*made, *(graph.outputs[position] for position in group)]
        part_graph = _own_graph(wanted[index], body, outputs, graph, f"{graph.name}_{index}")
        symbols = missing_symbols(part_graph)
        part_graph.inputs.extend(symbols)
        held = [value for value in available if value not in behind]
        for value in held:
            del available[value]
        pieces.append(
            Piece(
                part_graph,
                (*(names[value] for value in wanted[index]), *map(str, symbols)),
                tuple(names[value] for value in made),
                group,
                tuple(names[value] for value in held),
            )
        )
    return pieces


def _values(graph: Graph) -> list[Value]:
    made = [out for node in graph.nodes for out in node.outputs if out is not None]
    return [*(value for value in graph.inputs if isinstance(value, Value)), *made]


def _parts(graph: Graph, groups: Groups) -> list[list[Node]]:
    """The nodes of each piece, up to the last that a gradient of its group needs."""
    last = _last_nodes(graph)
    waits = _last_waits(graph)
    parts: list[list[Node]] = []
    begin = end = 0
    for group in groups[:-1]:
        end = max([end, *(last[position] + 1 for position in group)])
        while any(start < end <= wait for start, wait in waits):
            end = max(wait + 1 for start, wait in waits if start < end <= wait)
        parts.append(graph.nodes[begin:end])
        begin = end
    return [*parts, graph.nodes[begin:]]


def _last_waits(graph: Graph) -> list[tuple[int, int]]:
    """For each collective its number among the nodes, and that of the last which reads it."""
    users: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        for value in node.operands():
            users[value] = number
    return [
        (number, max(users.get(out, number) for out in node.outputs if out is not None))
        for number, node in enumerate(graph.nodes)
        if communicates(node.op) and any(out is not None for out in node.outputs)
    ]


def _closed(part: list[Node], outputs: list[Value]) -> tuple[list[Node], list[Value]]:
    """A piece with the views that it reads of other pieces' tensors, and the tensors it reads."""
    own = set(part)
    views: dict[Node, None] = {}
    read: dict[Value, None] = {}

    def need(value: Value) -> None:
        node = value.producer
        if node is not None and (node in own or node in views):
            return
        if node is None or work(node.op) is not Work.VIEW:
            read[value] = None
            return
        for operand in node.operands():
            need(operand)
        views[node] = None

    for node in part:
        for value in node.operands():
            need(value)
    for value in outputs:
        need(value)
    return [*views, *part], list(read)


def _is_made(value: Value, body: list[Node]) -> bool:
    return value.producer in set(body)


def _own_graph(
    inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Any], of: Graph, name: str
) -> Graph:
    """A graph with its own Values and Nodes."""
    own: dict[Any, Any] = {value: Value(value.name, value.spec) for value in inputs}
    copies = []
    for node in nodes:
        args = map_values(node.args, own.__getitem__)
        kwargs = map_values(node.kwargs, own.__getitem__)
        copy = Node(node.op, args, kwargs, (), node.where)
        copy.outputs = tuple(
            None if out is None else Value(out.name, out.spec, copy) for out in node.outputs
        )
        own.update((out, mine) for out, mine in zip(node.outputs, copy.outputs, strict=True) if out)
        copies.append(copy)
    results = [own[out] if isinstance(out, Value) else out for out in outputs]
    return Graph([own[value] for value in inputs], copies, results, [], of.env, name)


class CutBackward:
    """The compiled pieces of a backward. A call begins a `Progress`."""

    def __init__(
        self,
        graph: Graph,
        groups: Groups,
        compiler: Compiler,
        primitive: bool,
    ) -> None:
        inputs = list(graph.inputs)
        values = iter(range(len(_values(graph))))
        self.names = [
            str(next(values)) if isinstance(value, Value) else symbol_name(value)
            for value in inputs
        ]
        self.count = len(graph.outputs)
        begun = [
            (piece, begin(compiler, piece.graph, "backward"))
            for piece in cut_backward(graph, groups, primitive=primitive)
        ]
        self.pieces = [(piece, end()) for piece, end in begun]
        needed = {name for piece, _ in self.pieces for name in piece.reads}
        self.sizes = [(name, read) for name, read in symbol_reads(inputs).items() if name in needed]

    def __call__(self, *args: Any) -> Progress:
        held = dict(zip(self.names, args, strict=True))
        held.update((name, read.value(args)) for name, read in self.sizes)
        return Progress(self.pieces, self.count, held)

    def spend(self, args: list[Any]) -> Progress:
        """A call with the items of a list, which it empties."""
        progress = self(*args)
        args.clear()
        return progress
