"""Freeze parameters and buffers: compute once what depends on nothing else (`options.freezing`).

    graph(x, w) {
      c: bf16[8, 4] = prims.cast(w, torch.bfloat16)
      t: bf16[4, 8] = prims.permute(c, (1, 0))
      y = aten.mm.default(x, t)
      return (y,)
    }

      ->

    frozen(w) {                                    graph(x, c) {
      c = prims.cast(w, torch.bfloat16)              t = prims.permute(c, (1, 0))
      return (c,)                                    y = aten.mm.default(x, t)
    }                                                return (y,)
                                                   }

The first graph runs when the program is compiled, and again before a call that passes another
tensor or one that has been written to (`Tensor._version`) or given other data (`w.data = ...`).
Tensors that change often are frozen no more. A write that moves no version counter (`w.data.copy_`,
those of batch norms to their statistics on a GPU, another library's) is not seen, but for steps of
fused optimizers (`fused_steps.py`).

For graphs of inference. Random draws, checks of the data, and what is computed from symbolic sizes
stay. Views stay with their readers: they cost nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.fold_affine import fold_affine
from flambeau_autograd.keep_quantised import quantised_weights
from flambeau_autograd.kept_results import KeptResults, getter, kept_results
from flambeau_autograd.merge_products import merge_products
from flambeau_autograd.operators import Work, memory_of, work
from flambeau_autograd.pack_weights import pack_weights
from flambeau_prims import primitives as prims
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.primitives import Prim
from flambeau_prims.raising import can_raise
from flambeau_prims.rules.view import view_stride
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from flambeau_autograd.runtime_wrappers import Compiled

MOST_CHANGES = 4
"""After so many calls with changed parameters, what depends on them is computed in every call."""

_ATTRIBUTE = re.compile(r"\.[^\W\d]\w*$")


def is_frozen(tensor: Any, source: str) -> bool:
    """Whether an input is a parameter, or is read from an attribute as buffers are.

    Inference tensors are not: they count no writes.
    """
    return (
        isinstance(tensor, torch.Tensor)
        and not tensor.is_inference()
        and (isinstance(tensor, torch.nn.Parameter) or bool(_ATTRIBUTE.search(source)))
    )


def compile_frozen(
    graph: Graph, positions: Sequence[int], compiler: Callable[[Graph, str], Compiled],
    *, packs: bool = True, folds: bool = True,
) -> Compiled:  # fmt: skip
    """The callable for an inference graph; its inputs at `positions` are parameters and buffers.
    Unless it `packs` the factors of products, the compiler may. It `folds` what scales channels
    into weights.
    """
    written = {target for target, _ in graph.counted_writes()}
    frozen = {
        value: at
        for at in positions
        if isinstance(value := graph.inputs[at], Value)
        and value not in written
        and value.spec.env is None
    }
    split = split_frozen(graph, frozen, packs, folds)
    if split is None:
        return compiler(graph, "inference")
    return _Frozen(split, [frozen[value] for value in split.read], compiler)


# 1. The split


@dataclass(frozen=True, slots=True)
class Split:
    """`before` computes from the inputs `read` what is frozen; `after` takes the inputs at the
    positions `passed`, then the results of `before`.
    """

    before: Graph
    after: Graph
    read: list[Value]
    passed: list[int]


def split_frozen(
    graph: Graph, frozen: Collection[Value], packs: bool = True, folds: bool = True
) -> Split | None:
    """Split off what depends on `frozen` inputs only, in place; None if that is nothing."""
    constant = _constants(graph, frozen)
    quantised = quantised_weights(graph, constant)
    if quantised:
        constant = _constants(graph, frozen, quantised)
    if folds:
        # Before weights are in the library's order.
        fold_affine(graph, constant)
    merge_products(graph, constant)
    # `folds`: results may be rounded otherwise than eager rounds them.
    pack_weights(graph, constant, packs, transforms=folds)
    _separate_exits(graph, constant)
    results = _results(graph, constant)
    graph.frozen = frozenset((*frozen, *results))
    if not results:
        return None
    read, before = _before(graph, frozen, results)
    for value in results:
        value.producer = None
    graph.nodes = _nodes_behind(graph, [*graph.live_at_exit(), *_read_once(graph)], set(results))
    used = {value for node in graph.nodes for value in node.operands()}
    passed = [
        at
        for at, value in enumerate(graph.inputs)
        if not (isinstance(value, Value) and value in constant and value not in used)
    ]
    graph.inputs = [*(graph.inputs[at] for at in passed), *results]
    return Split(before, graph, read, passed)


def _constants(
    graph: Graph, frozen: Iterable[Value], left_out: Collection[Value] = ()
) -> set[Value]:
    """The Values that are computed from `frozen` ones, and from nothing that may change."""
    constant, from_nothing = set(frozen), set[Value]()
    for node in graph.nodes:
        if not _may_move(node) or any(value in left_out for value in node.outputs):
            continue
        operands = list(node.operands())
        if all(value in constant or value in from_nothing for value in operands):
            known = constant if any(value in constant for value in operands) else from_nothing
            known.update(value for value in node.outputs if value is not None)
    return constant


def _may_move(node: Node) -> bool:
    """Whether a node may run once, outside the graph."""
    if work(node.op) is Work.ONCE or _has_symbols(node):
        return False
    return isinstance(node.op, Prim) or not can_raise(node.op, node.args)


def _has_symbols(node: Node) -> bool:
    pending: list[Any] = [*node.args, *node.kwargs.values()]
    while pending:
        arg = pending.pop()
        if isinstance(arg, (Expr, FloatExpr)):
            return True
        if isinstance(arg, (tuple, list)):
            pending += arg
    return any(value is not None and value.spec.env is not None for value in node.outputs)


def _separate_exits(graph: Graph, constant: set[Value]) -> None:
    """Let copies of frozen results leave the graph: the caller may write to them."""
    copies: dict[Value, Value] = {}
    for at, out in enumerate(graph.outputs):
        if not isinstance(out, Value):
            continue
        root = memory_of(out)
        if root in constant and root.producer is not None:
            if out not in copies:
                node = Node(prims.clone, (out,), {}, (), root.producer.where)
                copies[out] = Value(f"{out.name}_own", out.spec.replace(offset=0), node)
                node.outputs = (copies[out],)
                graph.nodes.append(node)
            graph.outputs[at] = copies[out]


def _results(graph: Graph, constant: set[Value]) -> list[Value]:
    """The computed constants that others read."""
    pending = [*graph.live_at_exit(), *_read_once(graph)]
    seen: set[Value] = set()
    results: dict[Value, None] = {}
    while pending:
        value = pending.pop()
        node = value.producer
        if node is None or value in seen:
            continue
        seen.add(value)
        if value in constant and not _is_view(node):
            results[value] = None
        else:
            pending += node.operands()
    return list(results)


def _is_view(node: Node) -> bool:
    if work(node.op) is not Work.VIEW:
        return False
    x = node.args[0].spec
    return node.op is not prims.reshape or view_stride(x.shape, x.stride, node.args[1]) is not None


def _read_once(graph: Graph) -> list[Value]:
    """What random draws and checks read, though nobody may read their results."""
    nodes = [node for node in graph.nodes if work(node.op) is Work.ONCE]
    return [value for node in nodes for value in (*node.operands(), *node.outputs) if value]


def _nodes_behind(graph: Graph, values: Iterable[Value], stop: Collection[Value]) -> list[Node]:
    """The nodes that compute `values`, in order, and draws and checks; not those of `stop`."""
    needed = set(values)
    nodes = []
    for node in reversed(graph.nodes):
        wanted = any(value in needed and value not in stop for value in node.outputs)
        if wanted or (work(node.op) is Work.ONCE):
            nodes.append(node)
            needed.update(node.operands())
    return nodes[::-1]


def _before(
    graph: Graph, frozen: Collection[Value], results: list[Value]
) -> tuple[list[Value], Graph]:
    """The inputs of the graph that computes `results`, and this graph, in Values of its own."""
    needed = set(results)
    nodes = []
    for node in reversed(graph.nodes):
        if any(value in needed for value in node.outputs):
            nodes.append(node)
            needed.update(node.operands())
    read = [value for value in frozen if value in needed]
    new = {value: Value(value.name, value.spec) for value in read}
    copy = Graph([new[value] for value in read], name="frozen")
    for node in nodes[::-1]:
        args, kwargs = (map_values(arg, new.__getitem__) for arg in (node.args, node.kwargs))
        copied = Node(node.op, args, kwargs, (), node.where)
        for value in node.outputs:
            if value is not None:
                new[value] = Value(value.name, value.spec, copied)
        copied.outputs = tuple(None if value is None else new[value] for value in node.outputs)
        copy.nodes.append(copied)
    copy.outputs = [new[value] for value in results]
    return read, copy


# 2. The call


class _Frozen:
    """A compiled graph that keeps what it computes from frozen tensors while these stay."""

    def __init__(
        self, split: Split, read: list[int], compiler: Callable[[Graph, str], Compiled]
    ) -> None:
        self.before = split.before
        self.read = getter(read)
        self.passed = getter(split.passed)
        self.run = compiler(split.after, "inference")
        self.compiler = compiler
        self.kept = KeptResults()
        self.changes = -1
        # A program hands out strided tensors only.
        self.packs = any("mkldnn" in str(node.op) for node in self.before.nodes)
        self.in_every_call: Compiled | None = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        tensors = self.read(args)
        kept = self.kept  # one reference: another thread may replace it meanwhile
        if not kept.are_of(tensors):
            if self.in_every_call is not None:
                return self.run(*self.passed(args), *self.in_every_call(*tensors))
            kept = self.compute(tensors)
        assert kept.results is not None
        return self.run(*self.passed(args), *kept.results)

    def compute(self, tensors: tuple[torch.Tensor, ...]) -> KeptResults:
        """Compute what is frozen again."""
        kept = self.kept = kept_results(lambda *args: run_graph(self.before, args), tensors)
        self.changes += 1
        if self.changes == MOST_CHANGES and not self.packs:
            self.in_every_call = self.compiler(self.before, "inference")
        return kept
