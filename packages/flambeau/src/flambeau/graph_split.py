"""Graphs that read their own data: cut where they do, and compiled piece by piece.

    n = mask.sum().item(); y = x[mask]; z = (y * n).relu()
    ->  sum_1 = piece_0(mask); n = sum_1.item(); y = x[mask]; (relu,) = piece_1(y, n)

A call that defines a number or a size (an unbacked symbol), or that changes what no graph can hold
(inference mode, the state of random generators), runs as it is, under autograd; what stands between
two of them is a separate function to the rest of the stack: captured with those sizes symbolic,
guarded, compiled at its first call, and again should a size be 0 or 1. Arithmetic on numbers and
checks of them stay between the pieces. So do `torch.cond`, `torch.while_loop`, `scan` and `map`,
whose branches and bodies are compiled as pieces are. A function transform that chooses by data runs
as it is.

`cut_graph` gives the cut graph as data (`split_graph`), which `stored_splits` stores.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from flambeau.split_graph import Piece, SplitGraph, constants_of
from flambeau_capture.graphs.autograd_calls import hook_point
from flambeau_capture.graphs.control_flow import ControlFlow, depends_on_data
from flambeau_prims.size_floats import Condition, FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INFERENCE_MODE = (
    torch.autograd.grad_mode._enter_inference_mode,
    torch.autograd.grad_mode._exit_inference_mode,
)
"""How graphs that torch.compile has captured enter and leave inference mode."""

_SMALLEST = 2
"""Fewer calls than this are not worth a piece: they run as they are."""


def can_be_cut(gm: fx.GraphModule) -> bool:
    """Pieces cannot be differentiated twice, so a graph that differentiates itself stays whole."""
    return all(node.target is not torch.autograd.grad for node in gm.graph.nodes)


def is_data_dependent(gm: fx.GraphModule) -> bool:
    """Whether a captured graph defines numbers or sizes itself, chooses by what a tensor holds, or
    makes calls that no tracer may see through, and can be cut there.
    """
    if not can_be_cut(gm):
        return False
    targets = [node.target for node in gm.graph.nodes]
    env = gm.meta.get("size_env")
    if (env is not None and bool(env.unbacked_atoms)) or any(map(_chooses, targets)):
        return True
    return any(map(_is_untraced, gm.graph.nodes))


def cutting_calls(gm: fx.GraphModule) -> list[fx.Node]:
    """The calls of a graph that run between its pieces."""
    defined: set[str] = set()
    result = []
    for node in gm.graph.nodes:
        names = set(_unbacked_names(node.meta.get("spec")))
        defines = bool(names - defined)
        defined |= names
        is_call = node.op not in ("placeholder", "get_attr", "output")
        if is_call and (defines or _is_untraced(node) or _chooses(node.target)):
            result.append(node)
    return result


def cut_graph(gm: fx.GraphModule, ends: Iterable[fx.Node] = ()) -> SplitGraph:
    """A graph, cut. A piece ends with each of the nodes `ends`."""
    return _Cutter(gm, ends).run()


class _Cutter:
    """Writes the graph that calls the pieces; `made`: nodes of `gm` -> its nodes."""

    def __init__(self, gm: fx.GraphModule, ends: Iterable[fx.Node]) -> None:
        self.gm = gm
        self.split = SplitGraph(fx.Graph(), constants=constants_of(gm))
        self.made: dict[fx.Node, fx.Node] = {}
        self.open: list[fx.Node] = []
        self.defined: set[str] = set()
        hooked = [node.args[0] for node in gm.graph.nodes if node.target is hook_point]
        self.ends = {*hooked, *ends}
        """A piece ends with each of these: hooks see their whole gradients."""

    def run(self) -> SplitGraph:
        for node in self.gm.graph.nodes:
            names = set(_unbacked_names(node.meta.get("spec")))
            defines = bool(names - self.defined)
            self.defined |= names
            if node.op in ("placeholder", "get_attr"):
                self._copy(node)
            elif node.op == "output":
                self._close(node)
                self._copy(node)
            elif (_is_scalar(node) or _is_part(node)) and not defines:
                # Checks stay in order: the first that fails says why.
                if _is_check(node) and any(map(_checks_data, self.open)):
                    self._close(node)
                # Taken as soon as may be: a check need not end a piece, nor does a piece take whole
                # tuples.
                if all(given in self.made for given in node.all_input_nodes):
                    self._copy(node)
                else:
                    self.open.append(node)
            elif defines or _sets_state(node) or _is_untraced(node):
                self._close(node)
                self._copy(node)
            elif _chooses(node.target):
                self._close(node)
                self._choose(node)
            elif node.target is operator.getitem and _chooses(node.args[0].target):
                self._copy(node)
            else:
                self.open.append(node)
                if node in self.ends:
                    self._close(node)
        return self.split

    def _copy(self, node: fx.Node) -> None:
        self.made[node] = self.split.graph.node_copy(node, self.made.__getitem__)

    def _choose(self, node: fx.Node) -> None:
        """A node of control flow, whose graphs are pieces."""
        assert isinstance(node.target, ControlFlow)
        name = self.split.add_choice(node.target, _piece_of)
        args = fx.map_arg(node.args, self.made.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self.made.__getitem__)
        self.made[node] = self.split.graph.call_module(name, args, kwargs)

    def _close(self, before: fx.Node) -> None:
        """End the open piece: what of it is used from the node `before` on is its result."""
        nodes, self.open = self.open, []
        if sum(not _is_scalar(node) for node in nodes) < _SMALLEST:
            for node in nodes:
                self._copy(node)
            return
        inside = set(nodes)
        results = [node for node in nodes if any(user not in inside for user in node.users)]
        inputs = dict.fromkeys(
            given for node in nodes for given in node.all_input_nodes if given not in inside
        )
        name = self.split.add_piece(_piece(_graph_of(nodes, list(inputs), results), {}))
        graph = self.split.graph
        call = graph.call_module(name, tuple(self.made[given] for given in inputs))
        for index, node in enumerate(results):
            self.made[node] = graph.call_function(operator.getitem, (call, index))


def _graph_of(nodes: list[fx.Node], inputs: list[fx.Node], results: list[fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    result: dict[fx.Node, fx.Node] = {}
    for given in inputs:
        result[given] = graph.placeholder(given.name)
        result[given].meta["spec"] = given.meta.get("spec")
    for node in nodes:
        result[node] = graph.node_copy(node, result.__getitem__)
    graph.output(tuple(result[node] for node in results))
    return graph


def _piece_of(gm: fx.GraphModule) -> Piece:
    return _piece(gm.graph, constants_of(gm))


def _piece(graph: fx.Graph, constants: dict[str, Any]) -> Piece:
    """A graph as a piece; sizes symbolic in its placeholders' Specs are dynamic."""
    dynamic: dict[str, frozenset[int]] = {}
    for node in graph.find_nodes(op="placeholder"):
        dims = _symbolic_dims(node.meta.get("spec"))
        if dims:
            dynamic[f"L[{node.target!r}]"] = dims
    return Piece(graph, dynamic, constants)


def _is_untraced(node: fx.Node) -> bool:
    """Whether a call needs the real tensors and this thread's real state."""
    if bool(node.meta.get("untraced")) or node.target in _INFERENCE_MODE:
        return True
    return not _chooses(node.target) and depends_on_data(node.target)


def _chooses(target: Any) -> bool:
    """Whether a call runs one graph or another, or one again and again."""
    return isinstance(target, ControlFlow)


def _unbacked_names(spec: Any) -> Iterator[str]:
    """The unbacked symbols in what a node gives."""
    if isinstance(spec, (Expr, FloatExpr, Condition)):
        for name in spec.symbols():
            env = next(_envs(spec))
            if env.symbols[name].index in env.unbacked_atoms:
                yield name
    elif isinstance(spec, Spec):
        if spec.env is not None:
            yield from _unbacked_names((*spec.shape, *spec.stride, spec.offset))
    elif isinstance(spec, (tuple, list)):
        for item in spec:
            yield from _unbacked_names(item)
    elif isinstance(spec, dict):
        yield from _unbacked_names(tuple(spec.values()))


def _envs(number: Any) -> Iterator[Any]:
    if isinstance(number, (Expr, FloatExpr)):
        yield number.env
    elif isinstance(number, Condition):
        for arg in number.args:
            yield from _envs(arg)


def _is_scalar(node: fx.Node) -> bool:
    """Whether a call gives a number, or checks one."""
    if _is_check(node):
        return True
    spec = node.meta.get("spec")
    return node.op == "call_function" and isinstance(spec, (Expr, FloatExpr, Condition, int, float))


def _is_check(node: fx.Node) -> bool:
    """Whether a call checks a number."""
    return node.target is torch.ops.aten._assert_scalar.default


def _checks_data(node: fx.Node) -> bool:
    """Whether a call checks what a tensor holds."""
    return getattr(node.target, "__name__", "").startswith("_assert_async")


def _is_part(node: fx.Node) -> bool:
    """Whether a node is one of the results of a call."""
    if node.target is not operator.getitem or node.op != "call_function":
        return False
    return isinstance(node.all_input_nodes[0].meta.get("spec"), (tuple, list))


def _sets_state(node: fx.Node) -> bool:
    """Whether a call only changes torch's state: it reads and returns no tensor."""
    return not node.meta.get("pure", True) and not node.all_input_nodes


def _symbolic_dims(spec: Any) -> frozenset[int]:
    """The dims of a tensor whose sizes are symbolic; -1 stands for a number itself."""
    if isinstance(spec, Spec):
        return frozenset(dim for dim, size in enumerate(spec.shape) if isinstance(size, Expr))
    return frozenset({-1}) if isinstance(spec, (Expr, FloatExpr)) else frozenset()
