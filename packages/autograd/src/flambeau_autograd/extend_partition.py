"""The partition of a graph of equal layers, from that of a graph of fewer such layers.

    forward(x, w0, w1, w2):  a = mm(x, w0); b = mm(a, w1); c = mm(b, w2); return (c, a, b)
    backward(w0, w1, w2, a, b, g):  ...
->  forward(x, w0, ..., w79) and backward(w0, ..., w79, a, b, b_1, ..., g)

The calls of both graphs repeat where the layers do, in the backward from the last to the first:
each window of calls reads what the window before it computes, and the inputs, or the saved tensors,
of the next layer. The window that repeats is put behind the last as often as layers were left out.
A graph without such windows raises NotRepeated: then the whole graph is traced and parted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flambeau_autograd.partition import Partition, copied
from flambeau_autograd.repeated_layers import NotRepeated
from flambeau_prims.graph import Address, Graph, Node, ShortGraph, Value, map_values
from flambeau_prims.repeated_regions import FIRST, node_token
from flambeau_prims.repeated_runs import repeated_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flambeau_prims.repeated_runs import Run

LEAST_WINDOWS = 3
"""So many windows must be alike, of neighbouring layers each."""

Label = tuple[Any, int]
"""What corresponds in all layers, and the layer."""


class RepeatedCalls:
    """The calls of a short graph, with the window that repeats put behind the last as often as
    layers were `dropped`.

    `labels`: of inputs of the short graph, what they are of which layer; in each window of the
    layer that is `step` further. `uses`: what results are used for outside of the graph; they are
    equal in all windows. `resolve(label)` is the Value of an input of the whole graph, where layers
    count from `base` higher in front of the last window.
    """

    def __init__(
        self,
        graph: Graph,
        labels: Mapping[Value, Label],
        uses: Mapping[Value, Any],
        dropped: int,
        step: int,
    ) -> None:
        self.graph = graph
        self.nodes = graph.nodes
        self.labels = labels
        self.dropped = dropped
        self.step = step
        self.base = dropped if step < 0 else 0
        self.places: dict[Value, tuple[int, int]] = {}
        """Of a result of the short graph, the call, and which of its results."""
        for index, node in enumerate(graph.nodes):
            for number, out in enumerate(node.outputs):
                if out is not None:
                    self.places[out] = (index, number)
        known: dict[Any, int] = {}
        tokens = []
        for node in graph.nodes:
            used = tuple([None if out is None else uses.get(out) for out in node.outputs])
            token = node_token(node), str(node.where), node.region, node.function, used
            tokens.append(known.setdefault(token, len(known)))
        self.reads = [list(node.operands()) for node in graph.nodes]
        self.run = self._windows(tokens)
        self.short: Graph | None = None
        """The short graph as it is, for the stages behind this one if it has as many copies as they
        need: the whole graph takes its Nodes over.
        """
        if self.run.count >= 2 * FIRST:
            self.short = copied(graph.nodes, graph.inputs, graph.outputs, graph.env)
            self.short.name, self.short.private_outputs = graph.name, graph.private_outputs
        self.names = [value.name for value in self.places]
        self.added: list[list[Node]] = []
        """The windows that were added, in order."""

    # What repeats

    def _windows(self, tokens: list[int]) -> Run:
        definitions = [node.outputs for node in self.nodes]
        for run in repeated_runs(tokens, self.reads, definitions, LEAST_WINDOWS):
            try:
                windows = self._of_neighbours(run)
                self._check(windows)
            except NotRepeated:
                continue
            return windows
        raise NotRepeated

    def _of_neighbours(self, run: Run) -> Run:
        """The windows that read inputs of neighbouring layers."""
        links = [all(map(self._follows, a, b)) for a, b in pairwise(run.outside)]
        windows = run.longest_linked(links)
        if windows.count < LEAST_WINDOWS:
            raise NotRepeated
        return windows

    def _follows(self, here: Value, behind: Value) -> bool:
        label = self.labels.get(here)
        if label is None:
            return here is behind
        return self.labels.get(behind) == (label[0], label[1] + self.step)

    def _check(self, run: Run) -> None:
        """Calls in front of the windows read inputs of the layers of the first one and of those
        before, calls behind them of the last one and of those after: so the windows read those of
        all between.
        """
        first = self._layers_read(range(run.start, run.start + run.length), max)
        last = self._layers_read(range(run.stop - run.length, run.stop), min)
        recent = run.stop - 2 * run.length
        for index, values in enumerate(self.reads):
            if run.start <= index < run.stop:
                continue
            for value in values:
                if index >= run.stop and run.start <= self.places.get(value, (-1, 0))[0] < recent:
                    raise NotRepeated
                label = self.labels.get(value)
                if label is None:
                    continue
                layer = label[1] * self.step
                if label[0] not in first or (
                    layer > first[label[0]] if index < run.start else layer < last[label[0]]
                ):
                    raise NotRepeated

    def _layers_read(self, calls: range, choose: Callable[[int, int], int]) -> dict[Any, int]:
        """Of each kind of input, the last layer that calls read, or the first."""
        result: dict[Any, int] = {}
        for index in calls:
            for value in self.reads[index]:
                if (label := self.labels.get(value)) is not None:
                    layer = label[1] * self.step
                    result[label[0]] = choose(layer, result.get(label[0], layer))
        return result

    # The whole graph

    def window_of(self, value: Value) -> tuple[int, tuple[int, int]] | None:
        """The window of a result of the short graph, and which of its results it is."""
        index, number = self.places.get(value, (-1, 0))
        if not self.run.start <= index < self.run.stop:
            return None
        window, position = divmod(index - self.run.start, self.run.length)
        return window, (position, number)

    def result(self, window: int, place: tuple[int, int]) -> Value:
        """A result of a window of the whole graph."""
        position, number = place
        behind = window - self.run.count
        if behind >= 0:
            value = self.added[behind][position].outputs[number]
        else:
            value = self.nodes[self.run.start + window * self.run.length + position].outputs[number]
        assert value is not None
        return value

    def moved(self, value: Value, extra: int, resolve: Callable[[Label], Value]) -> Value:
        """What a call reads in the place of a Value if it is `extra` windows further back."""
        label = self.labels.get(value)
        if label is not None:
            return resolve((label[0], label[1] + self.base + self.step * extra))
        found = self.window_of(value)
        return value if found is None else self.result(found[0] + extra, found[1])

    def extend(
        self, resolve: Callable[[Label], Value], name: Callable[[Value, int], str]
    ) -> list[Node]:
        """The calls of the whole graph: those in front of and in the windows as they are, where
        `resolve` gives inputs for labels, and `name` what a result is called in an added window.
        """
        run = self.run
        last = self.nodes[run.stop - run.length : run.stop]
        for extra in range(1, self.dropped + 1):
            window: list[Node] = []
            self.added.append(window)

            def read(value: Value, extra: int = extra) -> Value:
                return self.moved(value, extra, resolve)

            for node in last:
                kwargs = map_values(node.kwargs, read) if node.kwargs else {}
                copy = Node(node.op, map_values(node.args, read), kwargs, (), node.where)
                copy.outputs = tuple([
                    None if out is None else Value(name(out, extra), out.spec, copy)
                    for out in node.outputs
                ])  # fmt: skip
                window.append(copy)
        for node in self.nodes[run.stop :]:

            def read_behind(value: Value) -> Value:
                return self.moved(value, self.dropped, resolve)

            node.args = map_values(node.args, read_behind)
            node.kwargs = map_values(node.kwargs, read_behind)
        added = [node for window in self.added for node in window]
        return [*self.nodes[: run.stop], *added, *self.nodes[run.stop :]]

    def attach(self, whole: Graph, position_of: Callable[[Label], int | None]) -> None:
        """Give the whole graph the short one, which stages behind this one compile in its place.
        `position_of`: the position of an input of the whole graph by its label.
        """
        if self.short is None:
            return
        run = self.run
        kinds: dict[Any, int] = {}
        short = ShortGraph(whole, self.short, self.dropped)
        top = max((layer for _, layer in self.labels.values()), default=0)
        place = {value: at for at, value in enumerate(whole.inputs)}
        for at, value in enumerate(self.graph.inputs):
            label = self.labels.get(value) if isinstance(value, Value) else None
            if label is None:
                short.inputs.append(place.get(value, -1))
                continue
            kind = kinds.setdefault(label[0], len(kinds))
            short.inputs.append(position_of((label[0], label[1] + self.base)) or 0)
            # In the order of the windows.
            layer = label[1] if self.step > 0 else top - label[1]
            short.input_classes[at] = kind, layer
        for which, kind in kinds.items():
            for layer in range(top + self.dropped + 1):
                position = position_of((which, layer))
                if position is not None:
                    behind = layer if self.step > 0 else top + self.dropped - layer
                    short.input_at[kind, behind] = position
        short.values = dict.fromkeys(
            value.name for value in self.short.inputs if isinstance(value, Value)
        )
        numbers: dict[tuple[int, int], int] = {}
        for value_name, value in zip(self.names, self.places, strict=True):
            found = self.window_of(value)
            short.values[value_name] = found and (
                numbers.setdefault(found[1], len(numbers)), found[0]
            )  # fmt: skip
        at_window: dict[Value, Address] = {}
        for which_result, kind in numbers.items():
            where = str(self.nodes[run.start + which_result[0]].where)
            for window in range(run.count + self.dropped):
                value = self.result(window, which_result)
                at_window[value] = kind, window
                short.names[kind, window] = value.name, where
        places = list(numbers)
        known = {out: at for at, out in reversed(list(enumerate(self.graph.outputs)))}
        for out in whole.outputs:
            address = at_window.get(out) if isinstance(out, Value) else None
            if address is None:
                short.outputs.append(known[out])
                continue
            window = address[1]
            if FIRST <= window < FIRST + self.dropped:
                short.outputs.append(address)
                continue
            window -= self.dropped if window >= FIRST else 0
            short.outputs.append(known[self.result(window, places[address[0]])])
        whole.short = short


@dataclass
class LayerInputs:
    """The inputs of the whole forward graph, of which the short graph has some Values.

    `values`: all of them, in order. `labels`: of those that one layer alone reads, which input of
    the layer it is, and the layer; `positions`: where they are among `values`.
    """

    values: list[Any]
    labels: dict[Value, Address]
    positions: dict[Address, int]

    def resolve(self, label: Label) -> Value:
        """The Value of a label."""
        value = self.values[self.position(label)]
        assert isinstance(value, Value)
        return value

    def position(self, label: Label) -> int:
        """The position of a label."""
        position = self.positions.get(label)
        if position is None:
            raise NotRepeated
        return position


def extend_partition(
    part: Partition,
    inputs: LayerInputs,
    gradients: Sequence[Address | None],
    whole_gradients: Sequence[Address | int],
    results: int,
    dropped: int,
) -> Partition:
    """The partition of the whole graph from that of the short graph, which is used up.

    `gradients`: of each gradient of the short graph the input that it is of, or None where no layer
    alone reads it; `whole_gradients`: the same for the whole graph, with the number of the short
    graph's gradient instead of None. `results` counts those of the forward.
    """
    return _Extension(part, inputs, results, dropped).run(gradients, whole_gradients)


class _Extension:
    def __init__(self, part: Partition, inputs: LayerInputs, results: int, dropped: int) -> None:
        self.part = part
        self.inputs = inputs
        self.results = part.forward.outputs[:results]
        self.dropped = dropped
        graphs = (part.forward, part.backward)
        names = [out.name for g in graphs for node in g.nodes for out in node.outputs if out]
        names += [value.name for value in inputs.values if isinstance(value, Value)]
        self.mark = "_"
        while any(self.mark in name for name in names):
            self.mark += "_"

    def run(
        self, gradients: Sequence[Address | None], whole_gradients: Sequence[Address | int]
    ) -> Partition:
        saved = self.part.forward.outputs[len(self.results) :]
        uses: dict[Value, Any] = {out: "saved" for out in saved if isinstance(out, Value)}
        for number, out in enumerate(self.results):
            if isinstance(out, Value):
                if out in self.inputs.labels:
                    raise NotRepeated
                uses[out] = number
        forward = self.part.forward
        self.forward = RepeatedCalls(forward, self.inputs.labels, uses, self.dropped, 1)
        self.name_sources()
        self.label_sources()
        uses = {}
        for number, (out, label) in enumerate(
            zip(self.part.backward.outputs, gradients, strict=True)
        ):
            if isinstance(out, Value):
                use = number if label is None else ("layers", label[0])
                uses[out] = (*uses.get(out, ()), use)
        self.backward = RepeatedCalls(self.part.backward, self.labels, uses, self.dropped, -1)
        forward_nodes = self.forward.extend(
            self.inputs.resolve, lambda out, extra: f"{out.name}{self.mark}{extra}"
        )
        self.register_sources()
        self.rename_recomputed()
        backward_nodes = self.backward.extend(self.resolve, self.name_of_added)
        outputs = self.gradients(gradients, whole_gradients)
        return self.built(forward_nodes, backward_nodes, outputs)

    # What the backward reads

    def name_sources(self) -> None:
        """Where results of the forward's windows are, by name: a call that the backward repeats has
        the forward's name.
        """
        self.computed: dict[str, tuple[int, tuple[int, int]] | None] = {
            value.name: self.forward.window_of(value) for value in self.forward.places
        }

    def label_sources(self) -> None:
        """Label what the backward reads of layers: inputs, and what windows have saved."""
        self.labels: dict[Value, Label] = {}
        self.sources: dict[Value, Any] = {}
        """Of each saved input of the backward the forward's Value."""
        for (kind, at), value in zip(self.part.saved, self.part.backward.inputs, strict=True):
            if not isinstance(value, Value) or kind not in ("input", "output"):
                continue
            forward = self.part.forward
            source: Any = (forward.inputs if kind == "input" else forward.outputs)[at]
            self.sources[value] = source
            label = self.inputs.labels.get(source)
            found = self.forward.window_of(source)
            if label is not None:
                self.labels[value] = ("input", label[0]), label[1]
            elif found is not None:
                self.labels[value] = ("saved", found[1]), found[0]

    def source(self, label: Label) -> Value:
        """The forward's Value of a label of the backward."""
        (kind, which), layer = label
        if kind == "input":
            return self.inputs.resolve((which, layer))
        if not 0 <= layer < self.forward.run.count + self.dropped:
            raise NotRepeated
        return self.forward.result(layer, which)

    def register_sources(self) -> None:
        """The Values of the short backward stand in front of its last window for other layers than
        in the short graph.
        """
        self.known: dict[Value, Value] = {}
        """By the forward's Value."""
        for value, source in list(self.sources.items()):
            label = self.labels.get(value)
            if label is not None:
                source = self.source((label[0], label[1] + self.backward.base))
                self.sources[value] = source
                value.name = source.name
            if source in self.known:
                raise NotRepeated
            self.known[source] = value

    def resolve(self, label: Label) -> Value:
        """The backward's Value of a label."""
        source = self.source(label)
        value = self.known.get(source)
        if value is None:
            value = self.known[source] = Value(source.name, source.spec)
            self.sources[value] = source
        return value

    def rename_recomputed(self) -> None:
        """Name what the backward computes again as the forward does."""
        self.recomputed: dict[Value, tuple[int, tuple[int, int]]] = {}
        run = self.backward.run
        for value, (index, _) in self.backward.places.items():
            if value.name not in self.computed:
                continue
            found = self.computed[value.name]
            if found is None:
                if run.stop - run.length <= index < run.stop:
                    raise NotRepeated
                continue
            self.recomputed[value] = found
            if index < run.stop:
                value.name = self.forward.result(found[0] + self.dropped, found[1]).name

    def name_of_added(self, out: Value, extra: int) -> str:
        """What a result of the backward's last window is called in an added one."""
        found = self.recomputed.get(out)
        if found is None:
            return f"{out.name}{self.mark}{extra}"
        return self.forward.result(found[0] + self.dropped - extra, found[1]).name

    # What the backward gives

    def gradients(
        self, addresses: Sequence[Address | None], whole: Sequence[Address | int]
    ) -> list[Value | None]:
        """The gradients of the whole graph."""
        backward = self.backward
        outputs: Any = self.part.backward.outputs
        of_layers: dict[int, dict[int, Value]] = {}
        windows: dict[int, set[Any]] = {}
        for out, address in zip(outputs, addresses, strict=True):
            if address is None or out is None:
                if out in self.labels:
                    raise NotRepeated
                continue
            if out not in backward.places:
                raise NotRepeated
            number, layer = address
            found = backward.window_of(out)
            layers = {
                layer
                if backward.places[out][0] >= backward.run.stop
                else layer + backward.base: out
            }
            if found is not None:
                windows.setdefault(number, set()).add((found[0] + layer, found[1]))
                if found[0] == backward.run.count - 1:
                    for extra in range(1, self.dropped + 1):
                        value = backward.result(found[0] + extra, found[1])
                        layers[layer + backward.base - extra] = value
            known = of_layers.setdefault(number, {})
            if len(windows.get(number, ())) > 1 or not known.keys().isdisjoint(layers):
                raise NotRepeated
            known.update(layers)
        result: list[Value | None] = []
        for each in whole:
            if isinstance(each, int):
                result.append(outputs[each])
            elif each[0] not in of_layers:
                result.append(None)
            else:
                known = of_layers[each[0]]
                if each[1] not in known:
                    raise NotRepeated
                result.append(known.pop(each[1]))
        if any(of_layers.values()):
            raise NotRepeated
        return result

    # The two graphs

    def built(
        self, forward_nodes: list[Node], backward_nodes: list[Node], gradients: list[Value | None]
    ) -> Partition:
        read = {value for node in backward_nodes for value in node.operands()}
        read.update(out for out in gradients if out is not None)
        position = {
            value: ("input", at)
            for at, value in enumerate(self.inputs.values)
            if isinstance(value, Value)
        }
        for at, out in enumerate(self.results):
            if isinstance(out, Value):
                position.setdefault(out, ("output", at))
        saved = {source: value for value, source in self.sources.items() if value in read}
        extras = [
            out
            for node in forward_nodes
            for out in node.outputs
            if out is not None and out in saved and out not in position
        ]
        for number, out in enumerate(extras, len(self.results)):
            position[out] = "output", number
        ordered = sorted(saved, key=lambda source: position[source])
        short = self.part.forward
        forward = Graph(
            list(self.inputs.values),
            forward_nodes,
            [*self.results, *extras],
            [],
            short.env,
            short.name,
            private_outputs=len(extras),
        )
        rest = [
            (source, value)
            for source, value in zip(self.part.saved, self.part.backward.inputs, strict=True)
            if source[0] not in ("input", "output")
        ]
        backward = Graph(
            [*(saved[source] for source in ordered), *(value for _, value in rest)],
            backward_nodes,
            list(gradients),
            [],
            self.part.backward.env,
            self.part.backward.name,
        )
        sources = [*(position[source] for source in ordered), *(source for source, _ in rest)]
        self.forward.attach(forward, self.inputs.positions.get)
        place = {value: at for at, value in enumerate(backward.inputs)}

        def position_of(label: Label) -> int | None:
            try:
                value = self.known.get(self.source(label))
            except NotRepeated:
                return None
            return None if value is None else place.get(value)

        self.backward.attach(backward, position_of)
        return Partition(forward, backward, sources)
