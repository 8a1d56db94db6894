"""The checker of border 1: what every backend may rely on in a captured graph.

    check_captured_graph(gm, example_inputs)     MalformedCapture: "add: no meta['spec']"

docs/architecture.md states the contract. The checker runs in every test, and under
`FLAMBEAU_CHECK=1`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from flambeau_capture.record import Opaque
from flambeau_prims.size_floats import Condition, FloatExpr
from flambeau_prims.sizes import Expr, SizeEnv, hint_of
from flambeau_prims.spec import Spec
from flambeau_prims.wrapper_subclasses import SubclassSpec

_CALLS = ("call_function", "call_method")
_OPS = ("placeholder", "get_attr", *_CALLS, "output")


class MalformedCapture(AssertionError):
    """A captured graph breaks the contract of border 1: a defect of capture."""


def check_captured_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Raise `MalformedCapture`, which names the node, unless the graph keeps its contract."""
    for problem in _problems(gm, example_inputs):
        raise MalformedCapture(f"{problem}, in\n{gm.graph}")


def _problems(gm: fx.GraphModule, examples: Sequence[Any]) -> Iterator[str]:
    nodes = list(gm.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    yield from _order_problems(nodes, len(placeholders))
    if len(placeholders) != len(examples):
        yield f"{len(placeholders)} placeholders for {len(examples)} example inputs"
    tensors: dict[int, fx.Node] = {}
    for node, example in zip(placeholders, examples, strict=False):
        yield from (f"{node}: {text}" for text in _placeholder_problems(node, example))
        if isinstance(example, torch.Tensor):
            twin = tensors.setdefault(id(example), node)
            if twin is not node:
                yield f"{node}: the same tensor as {twin}"
    defined: set[fx.Node] = set()
    for node in nodes:
        yield from (f"{node}: {text}" for text in _node_problems(node, gm, defined))
        defined.add(node)
    yield from _symbol_problems(nodes, gm.meta.get("size_env"))


def _order_problems(nodes: list[fx.Node], placeholders: int) -> Iterator[str]:
    names: set[str] = set()
    for at, node in enumerate(nodes):
        if node.op not in _OPS:
            yield f"{node}: no node of a captured graph is a {node.op}"
        if node.op == "placeholder" and at >= placeholders:
            yield f"{node}: a placeholder behind other nodes"
        if (node.op == "output") != (at == len(nodes) - 1):
            yield f"{node}: the output node, and it alone, ends a graph"
        if node.name in names:
            yield f"{node}: two nodes of this name"
        names.add(node.name)


def _placeholder_problems(node: fx.Node, example: Any) -> Iterator[str]:
    source, spec = node.meta.get("source"), node.meta.get("spec")
    if not (isinstance(source, str) and source):
        yield f"meta['source'] is {source!r}, not where the input comes from"
    if isinstance(spec, Spec):
        if not isinstance(example, torch.Tensor):
            yield f"{spec} for an input of type {type(example).__name__}"
            return
        shape = tuple(hint_of(size) for size in spec.shape)
        if shape != tuple(example.shape) or spec.dtype is not example.dtype:
            yield f"{spec} for a {example.dtype} tensor of shape {tuple(example.shape)}"
        if spec.device != example.device:
            yield f"{spec} for a tensor on {example.device}"
        if example.layout is torch.strided:
            stride = tuple(hint_of(step) for step in spec.stride)
            if stride != example.stride():
                yield f"strides {stride} for a tensor of strides {example.stride()}"
    elif isinstance(spec, SubclassSpec):
        if type(example) is not spec.cls:
            yield f"{spec} for an input of type {type(example).__name__}"
    elif isinstance(spec, (Expr, FloatExpr)):
        if not isinstance(example, (int, float)):
            yield f"the number {spec} for an input of type {type(example).__name__}"
    elif not isinstance(spec, Opaque):
        yield f"meta['spec'] is {spec!r}, not what the input is"


def _node_problems(node: fx.Node, gm: fx.GraphModule, defined: set[fx.Node]) -> Iterator[str]:
    for item in node.all_input_nodes:
        if item.graph is not node.graph:
            yield f"reads {item}, a node of another graph"
        elif item not in defined:
            yield f"reads {item}, which is defined later or not at all"
        elif node not in item.users:
            yield f"{item}, which it reads, does not know it as a user"
    yield from _argument_problems((node.args, node.kwargs))
    if node.op == "call_function" and not callable(node.target):
        yield f"calls {node.target!r}, which is not callable"
    if node.op == "get_attr":
        try:
            operator.attrgetter(str(node.target))(gm)
        except AttributeError:
            yield f"the module has no attribute {node.target!r}"
    if node.op in _CALLS and "spec" not in node.meta:
        yield "no meta['spec']"
    if not node.users and node.op != "output":
        part = node.target is operator.getitem  # of a result that is used in part
        if node.op not in _CALLS or (node.meta.get("pure") and not part):
            yield "nobody uses it"
    if node.op == "output":
        yield from _output_problems(node)


def _argument_problems(arg: Any) -> Iterator[str]:
    if isinstance(arg, (Expr, FloatExpr, Condition)):
        yield f"its argument {arg} is a symbolic number, not the node of one"
    elif isinstance(arg, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield f"its argument is a {type(arg).__name__}, not a node"
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _argument_problems(item)
    elif isinstance(arg, dict):
        yield from _argument_problems(list(arg.values()))
    elif isinstance(arg, slice):
        yield from _argument_problems((arg.start, arg.stop, arg.step))


def _output_problems(node: fx.Node) -> Iterator[str]:
    results = node.args[0] if len(node.args) == 1 else None
    if not (isinstance(results, tuple) and all(isinstance(item, fx.Node) for item in results)):
        yield f"returns {results!r}, not a flat tuple of nodes"
        return
    specs = node.meta.get("spec")
    if not (isinstance(specs, tuple) and len(specs) == len(results)):
        yield f"meta['spec'] is {specs!r}, not a tuple of {len(results)}"
        return
    for item, spec in zip(results, specs, strict=True):
        if item.meta.get("spec") != spec:
            yield f"meta['spec'] says {spec} of {item}, which is {item.meta.get('spec')}"


def _symbol_problems(nodes: list[fx.Node], env: SizeEnv | None) -> Iterator[str]:
    """Symbols come from placeholders; the node that defines an unbacked one names it first."""
    known: set[str] = set()
    for node in nodes:
        if node.op == "placeholder":
            known.update(_symbols_in(node.meta.get("spec")))
    for node in nodes:
        for name in _symbols_in(node.meta.get("spec")):
            if env is None or name not in env.symbols:
                yield f"{node}: the graph's size_env has no symbol {name}"
            elif name not in known:
                if env.symbols[name].index not in env.unbacked_atoms:
                    yield f"{node}: no placeholder defines the symbol {name}"
                known.add(name)


def _symbols_in(spec: Any) -> Iterator[str]:
    if isinstance(spec, (Expr, FloatExpr, Condition)):
        yield from spec.symbols()
    elif isinstance(spec, Spec):
        if spec.env is not None:
            yield from _symbols_in((*spec.shape, *spec.stride, spec.offset))
    elif isinstance(spec, SubclassSpec):
        for size in spec.sizes:
            yield from size.symbols()
    elif isinstance(spec, (tuple, list)):
        for item in spec:
            yield from _symbols_in(item)
    elif isinstance(spec, dict):
        yield from _symbols_in(list(spec.values()))
