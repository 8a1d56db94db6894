"""Captured graphs of equal layers, shortened to a few of them before they are traced.

    y0 = f(x, w0); y1 = f(y0, w1); ...; y79 = f(y78, w79); return (g(y79),)
->  y0 = f(x, w0); y1 = f(y0, w1); ...; y5 = f(y4, w5);    return (g(y5),)

What is found for the short graph holds for the whole one, with more copies of what repeats:
`extend_partition.py` extends the graphs that it is parted into, `RepeatedLayers.spread` what is
known of single inputs. The layers are equal calls on equal Specs, on the same lines. What they read
from outside is the same for all, or an input of one layer alone, and inputs of one position are
alike in all that a trace looks at. The calls in front of the layers read inputs of the first ones
only, those behind them what the last ones compute and read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import fx

from flambeau_prims.graph import Address, Value
from flambeau_prims.repeated_runs import repeated_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flambeau_prims.repeated_runs import Run
    from flambeau_prims.spec import Spec

T = TypeVar("T")

KEPT = 4
"""So many layers are kept in front of those that are left out, and as many behind them: one more
than in `repeated_regions`, since in a backward the windows of calls begin inside of layers.
"""
MANY = 3 * KEPT
"""So many layers are many. Of fewer, one layer less is kept on each side: then forward and backward
still show that they repeat, but not their Programs.
"""
LEAST = 9
"""A run of fewer layers is traced as it is."""

LEAST_WITHOUT_INPUTS = 2 * MANY
"""The same for layers without inputs of their own: steps on the same tensors, the gradients of
which often do not repeat. Then the short graph is traced in vain, a third of the work at most.
"""


class NotRepeated(Exception):
    """Something does not repeat as the layers do."""


class _UncompiledModule(fx.GraphModule):
    """A graph to be traced: no code is generated for it."""

    def recompile(self) -> Any:
        return None


@dataclass
class RepeatedLayers:
    """`short` has `dropped` layers fewer than the captured graph; `inputs` are the positions of its
    arguments among those of the captured graph. `addresses`: of arguments of the captured graph
    that one layer alone reads, which argument of the layer it is, and the layer. `count`: the
    layers of the captured graph; `kept` of them in front of those that are left out, and as many
    behind them, are in `short`.
    """

    short: fx.GraphModule
    inputs: list[int]
    addresses: dict[int, Address]
    count: int
    kept: int

    @property
    def dropped(self) -> int:
        """How many layers were left out."""
        return self.count - 2 * self.kept

    def short_address(self, position: int) -> Address | None:
        """The address in the short graph of the argument at a position of it."""
        address = self.addresses.get(self.inputs[position])
        if address is None or address[1] < self.kept:
            return address
        return address[0], address[1] - self.dropped

    def inputs_of(self, gm: fx.GraphModule, known: Mapping[int, Any]) -> dict[int, Any]:
        """What stands for the arguments of the whole graph `gm`, by position: as `known` for the
        short graph's, with new Values for those of layers that were left out. The Values of the
        first layers keep theirs, whatever layers follow.
        """
        names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        result: dict[int, Any] = {}
        at_address = {address: whole for whole, address in self.addresses.items()}
        specs: dict[int, Spec] = {}
        for position, value in known.items():
            address = self.short_address(position)
            whole = self.inputs[position] if address is None else at_address[address]
            result[whole] = value
            if address is not None:
                specs[address[0]] = value.spec
                value.name = names[whole]
        for whole, (number, _) in self.addresses.items():
            if whole not in result:
                result[whole] = Value(names[whole], specs[number])
        return result

    def like(self, layer: int) -> int:
        """The layer of the short graph that stands for one of the whole graph."""
        return min(layer, max(self.kept, layer - self.dropped))

    def spread(self, known: Mapping[int, T]) -> dict[int, T]:
        """What is known of the arguments of the whole graph, by position, from what is `known` of
        the short one's. Raises NotRepeated if layers between the first and the last differ in it.
        """
        result: dict[int, T] = {}
        of_layers: dict[int, dict[int, Any]] = {}
        for position, whole in enumerate(self.inputs):
            address = self.short_address(position)
            if address is not None:
                of_layers.setdefault(address[0], {})[address[1]] = known.get(position, self)
            elif position in known:
                result[whole] = known[position]
        for values in of_layers.values():
            if any(values[layer] != values[1] for layer in range(2, 2 * self.kept - 1)):
                raise NotRepeated
        for whole, (number, layer) in self.addresses.items():
            value = of_layers[number][self.like(layer)]
            if value is not self:
                result[whole] = value
        return result


def shorten_module(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> RepeatedLayers | None:
    """The graph with most of its longest run of equal layers left out, if there is one."""
    nodes = list(gm.graph.nodes)
    if len(nodes) < 2 * LEAST or gm.meta.get("steps") or gm.meta.get("copied_inputs"):
        return None
    placeholders = [node for node in nodes if node.op == "placeholder"]
    calls = nodes[len(placeholders) : -1]
    if not all(node.op in ("call_function", "call_method") for node in calls):
        return None
    known: dict[Any, int] = {}
    tokens = [known.setdefault(_token(node), len(known)) for node in calls]
    if 2 * len(known) > len(tokens):
        return None
    reads = [_reads(node) for node in calls]
    for run in repeated_runs(tokens, reads, [(node,) for node in calls], LEAST):
        try:
            return _shortened(gm, run, reads, placeholders, calls, example_inputs)
        except NotRepeated:
            continue
    return None


def _reads(node: fx.Node) -> list[fx.Node]:
    """The nodes that a node reads, in the order of its arguments."""
    result: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), result.append)
    return result


def _token(node: fx.Node) -> Any:
    """Equal for calls that are equal but for the nodes that they read."""
    meta = node.meta
    return (
        node.op, _key(node.target), _key(node.args), _key(node.kwargs), _key(meta.get("spec")),
        meta.get("where"), meta.get("region"), meta.get("pure"), meta.get("requires_grad"),
    )  # fmt: skip


def _key(arg: Any) -> Any:
    """Equal for arguments that are equal but for their nodes; floats by their bits, objects by
    identity.
    """
    kind = type(arg)
    if kind is fx.Node:
        return fx.Node
    if isinstance(arg, (tuple, list)):
        return (kind, *[_key(item) for item in arg])
    if isinstance(arg, dict):
        return (kind, *[(name, _key(item)) for name, item in arg.items()])
    if kind is slice:
        return kind, _key(arg.start), _key(arg.stop), _key(arg.step)
    if kind is float or kind is complex:
        return kind, repr(arg)
    if kind in (int, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format):
        return kind, arg
    return kind, id(arg)


def _seen_of_input(node: fx.Node, example: Any) -> Any:
    """What a trace sees of an input."""
    if not isinstance(example, torch.Tensor):
        raise NotRepeated
    spec = node.meta.get("spec")
    return (
        id(spec), isinstance(example, torch.nn.Parameter), example.requires_grad, example.is_leaf,
        example.is_inference(), example.layout, example.dtype, example.device,
        tuple(example.shape), example.stride(), example.is_conj(), example.is_neg(),
    )  # fmt: skip


def _shortened(
    gm: fx.GraphModule,
    run: Run,
    reads: list[list[fx.Node]],
    placeholders: list[fx.Node],
    calls: list[fx.Node],
    example_inputs: Sequence[Any],
) -> RepeatedLayers:
    kept = KEPT if run.count >= MANY else KEPT - 1
    if run.reach > kept:
        raise NotRepeated  # a layer behind the gap reads what layers in it compute
    end = run.count - kept
    position = {node: number for number, node in enumerate(placeholders)}
    addresses: dict[fx.Node, Address] = {}
    for number, inputs in enumerate(zip(*run.outside, strict=True)):
        if all(node is inputs[0] for node in inputs):
            continue
        alike = set()
        for layer, node in enumerate(inputs):
            if node not in position or node in addresses:
                raise NotRepeated
            addresses[node] = number, layer
            alike.add(_seen_of_input(node, example_inputs[position[node]]))
        if len(alike) > 1:
            raise NotRepeated
    if not addresses and run.count < LEAST_WITHOUT_INPUTS:
        raise NotRepeated
    layer_of = {node: layer for node, (_, layer) in addresses.items()}
    layer_of.update(
        (calls[at], (at - run.start) // run.length) for at in range(run.start, run.stop)
    )
    for at in range(run.start):
        if any(layer_of.get(node, 0) >= kept for node in reads[at]):
            raise NotRepeated
    output = gm.graph.output_node()
    for nodes in (*reads[run.stop :], _reads(output)):
        if any(layer_of.get(node, end) < end for node in nodes):
            raise NotRepeated
    graph = fx.Graph()
    own: dict[fx.Node, fx.Node] = {}
    arguments = [node for node in placeholders if not kept <= layer_of.get(node, 0) < end]
    gap = (run.start + kept * run.length, run.start + end * run.length)
    for node in (*arguments, *calls[: gap[0]]):
        own[node] = graph.node_copy(node, own.__getitem__)
    # What the first layer behind the gap reads of layers before it, the last before it computes.
    shift = gap[1] - gap[0]
    for at in range(max(gap[0], run.start + shift), gap[1]):
        own[calls[at]] = own[calls[at - shift]]
    for node in (*calls[gap[1] :], output):
        own[node] = graph.node_copy(node, own.__getitem__)
    short = _UncompiledModule(torch.nn.Module(), graph)
    short.meta.update(gm.meta)
    return RepeatedLayers(
        short,
        [position[node] for node in arguments],
        {position[node]: address for node, address in addresses.items()},
        run.count,
        kept,
    )
