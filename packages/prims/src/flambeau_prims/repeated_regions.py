"""Graphs of equal layers, shortened to a few of them.

    a0 = f(x, w0); a1 = f(a0, w1); ...; a79 = f(a78, w79); y = g(a79)
->  a0 = f(x, w0); a1 = f(a0, w1); ...; a5 = f(a4, w5);    y = g(a5)

What a stage makes of the short graph it makes of the long one, too, with more copies of what
repeats in its result. So a stage compiles the short graph and extends the result (see
`flambeau_inductor.repeat_program`). The layers must be equal calls on equal Specs, in the order of
the graph. What they read from outside is the same for all layers, or an input of one layer alone.
The calls in front of the run read inputs of its first layers only, those behind it what its last
layers compute and read.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Address, Graph, Node, ShortGraph, Value, map_values
from flambeau_prims.repeated_runs import Run, repeated_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST = 3
"""So many copies are kept in front of those that are left out, and as many behind them: the first
and the last are compiled in another way than those between, and these must show that they repeat.
"""
LEAST = 10
"""A run of fewer copies is compiled as it is."""


def shorten(graph: Graph) -> ShortGraph | None:
    """The graph with most copies of its longest run of equal layers left out, if there is one."""
    if graph.frozen or len(graph.nodes) < 2 * LEAST:
        return None
    known: dict[Any, int] = {}
    tokens = [known.setdefault(node_token(node), len(known)) for node in graph.nodes]
    if 2 * len(known) > len(tokens):
        return None
    reads = [list(node.operands()) for node in graph.nodes]
    definitions = [node.outputs for node in graph.nodes]
    for run in repeated_runs(tokens, reads, definitions, LEAST):
        short = _Shortening(graph, run, reads).run()
        if short is not None:
            return short
    return None


def node_token(node: Node) -> Any:
    """Equal for calls that are equal but for the Values that they read and compute."""
    return (
        id(node.op),
        _key(node.args),
        _key(node.kwargs) if node.kwargs else None,
        tuple([None if out is None else id(out.spec) for out in node.outputs]),
        node.in_backward,
    )


def _key(arg: Any) -> Any:
    """Equal for arguments that are equal but for their Values; floats by their bits."""
    kind = type(arg)
    if kind is Value:
        return id(arg.spec)
    if kind is tuple or kind is list:
        return (kind, *[_key(item) for item in arg])
    if kind is dict:
        return tuple([(name, _key(item)) for name, item in arg.items()])
    if kind is float or kind is complex:
        return kind, repr(arg)
    return kind, arg


class _NotRepeated(Exception):
    """What is around the copies does not repeat as they do."""


class _Shortening:
    def __init__(self, graph: Graph, run: Run, reads: list[list[Value]]) -> None:
        self.graph = graph
        self.run_of_copies = run
        self.reads = reads
        self.dropped = run.count - 2 * FIRST
        self.end = run.count - FIRST
        self.input_address: dict[Value, Address] = {}
        """Inputs that are read by one copy, and by no call outside of the run that may not."""
        self.value_address: dict[Value, Address] = {}
        self.result = ShortGraph(graph, Graph(), self.dropped)

    def run(self) -> ShortGraph | None:
        if self.run_of_copies.reach > FIRST:
            return None  # a copy behind the gap reads what copies in it compute
        try:
            self.name_inputs()
            self.name_values()
            self.check_surroundings()
            self.build()
        except _NotRepeated:
            return None
        return self.result

    def is_dropped(self, copy: int) -> bool:
        """Whether the short graph is without a copy."""
        return FIRST <= copy < self.end

    def name_inputs(self) -> None:
        inputs = {value for value in self.graph.inputs if isinstance(value, Value)}
        for number, values in enumerate(zip(*self.run_of_copies.outside, strict=True)):
            if all(value is values[0] for value in values):
                continue
            for copy, value in enumerate(values):
                if value not in inputs or value in self.input_address:
                    raise _NotRepeated
                self.input_address[value] = (number, copy)
        aligned: dict[int, bool | None] = {}
        for value, (number, _) in self.input_address.items():
            own = self.graph.aligned.get(value)
            if aligned.setdefault(number, own) != own:
                raise _NotRepeated

    def name_values(self) -> None:
        run = self.run_of_copies
        results = 0
        for position in range(run.length):
            for copy in range(run.count):
                node = self.graph.nodes[run.start + copy * run.length + position]
                for number, out in enumerate(node.outputs):
                    if out is not None:
                        address = (results + number, copy)
                        self.value_address[out] = address
                        self.result.names[address] = (out.name, str(node.where))
            results += len(node.outputs)

    def check_surroundings(self) -> None:
        run = self.run_of_copies
        for index in (*range(run.start), *range(run.stop, len(self.graph.nodes))):
            for value in self.reads[index]:
                address = self.input_address.get(value) or self.value_address.get(value)
                if address is None:
                    continue
                is_near = address[1] < FIRST if index < run.start else address[1] >= self.end
                if not is_near:
                    raise _NotRepeated
        self.check_ends()

    def check_ends(self) -> None:
        """Each copy that is left out returns and writes what the copies beside it do."""
        returned: dict[int, set[int]] = defaultdict(set)
        for out in self.graph.outputs:
            if isinstance(out, Value) and (address := self.value_address.get(out)):
                if address[1] in returned[address[0]]:
                    raise _NotRepeated
                returned[address[0]].add(address[1])
            elif isinstance(out, Value) and out in self.input_address:
                raise _NotRepeated
        self.check_sets(returned)
        written: dict[Any, set[int]] = defaultdict(set)
        for target, value in self.graph.writes:
            target_address = self.input_address.get(target)
            address = self.value_address.get(value) or self.input_address.get(value)
            if target_address is not None:
                kind, copy = target_address
                count = self.graph.write_counts.get(target)
                own = (address[0], address[1] - copy) if address else value
                written[kind, count, own].add(copy)
            elif address is not None and address[1] < self.end:
                raise _NotRepeated
        self.check_sets(written)
        counted: dict[Any, set[int]] = defaultdict(set)
        for target, count in self.graph.write_counts.items():
            if (target_address := self.input_address.get(target)) is not None:
                counted[target_address[0], count].add(target_address[1])
        self.check_sets(counted)

    def check_sets(self, sets: dict[Any, set[int]]) -> None:
        inner = set(range(FIRST - 1, self.end + 1))
        for copies in sets.values():
            if copies & inner and not inner <= copies:
                raise _NotRepeated

    # The short graph

    def build(self) -> None:
        graph, run, result = self.graph, self.run_of_copies, self.result
        own: dict[Value, Value] = {}
        short = result.graph
        for position, given in enumerate(graph.inputs):
            if not isinstance(given, Value):
                result.inputs.append(position)
                short.inputs.append(given)
                continue
            address = self.input_address.get(given)
            if address is not None:
                result.input_at[address] = position
                if self.is_dropped(address[1]):
                    continue
                result.input_classes[len(short.inputs)] = self.shifted(address)
            result.inputs.append(position)
            own[given] = Value(given.name, given.spec)
            short.inputs.append(own[given])
        cut = run.start + FIRST * run.length
        short.nodes += self.copied(graph.nodes[:cut], own)
        # What the first copy behind the gap reads of copies before it, the last before it computes.
        gap = self.dropped * run.length
        for node, stand_in in zip(
            graph.nodes[run.start + gap : cut + gap], graph.nodes[run.start : cut], strict=True
        ):
            for value, other in zip(node.outputs, stand_in.outputs, strict=True):
                if value is not None and other is not None:
                    own[value] = own[other]
        short.nodes += self.copied(graph.nodes[cut + gap :], own)
        for value, mine in own.items():
            address = self.value_address.get(value)
            if address is None or not self.is_dropped(address[1]):
                result.values[mine.name] = address and self.shifted(address)
        private = len(graph.outputs) - graph.private_outputs
        for position, out in enumerate(graph.outputs):
            address = self.value_address.get(out) if isinstance(out, Value) else None
            if address is not None and self.is_dropped(address[1]):
                result.outputs.append(address)
                continue
            result.outputs.append(len(short.outputs))
            short.outputs.append(own[out] if isinstance(out, Value) else out)
            short.private_outputs += position >= private
        short.writes = [(own[a], own[b]) for a, b in graph.writes if self.is_kept(a)]
        short.write_counts = {own[a]: n for a, n in graph.write_counts.items() if self.is_kept(a)}
        short.aligned = {own[a]: must for a, must in graph.aligned.items() if self.is_kept(a)}
        short.env, short.name = graph.env, graph.name

    def is_kept(self, value: Value) -> bool:
        """Whether the short graph has an input."""
        address = self.input_address.get(value)
        return address is None or not self.is_dropped(address[1])

    def shifted(self, address: Address) -> Address:
        """An address in the short graph."""
        kind, copy = address
        return kind, copy if copy < self.end else copy - self.dropped

    def copied(self, nodes: Iterable[Node], own: dict[Value, Value]) -> list[Node]:
        """Nodes on Values of the short graph's own."""
        result = []
        for node in nodes:
            args, kwargs = map_values((node.args, node.kwargs), own.__getitem__)
            copy = Node(node.op, args, kwargs, (), node.where)
            outputs: list[Value | None] = []
            for out in node.outputs:
                mine = None if out is None else Value(out.name, out.spec, copy)
                if out is not None and mine is not None:
                    own[out] = mine
                outputs.append(mine)
            copy.outputs = tuple(outputs)
            result.append(copy)
        return result
