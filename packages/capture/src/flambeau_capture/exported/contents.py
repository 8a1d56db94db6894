"""An exported graph as data, and as text.

graph Net(x: f32[batch, 8], *, mask: bool[batch] | None)
  size batch = x.size(0), batch >= 2
  parameter linear_weight: f32[4, 8]   'linear.weight'

  linear: f32[batch, 4] = torch.nn.functional.linear(x, linear_weight)   # net.py:12
  return {'y': linear}
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from flambeau_capture.exported.signature import CallSignature, InputMismatch
from flambeau_capture.exported.tree import Tree, argument_text, tree_text
from flambeau_capture.graphs.higher_order import HigherOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_prims.sizes import Expr
    from flambeau_prims.spec import Spec


@dataclass(frozen=True, slots=True)
class GraphInput:
    """What one placeholder of the graph stands for.

    kind "argument": the input at the leaf `index` of the arguments, called `name` by the user (`x`,
    `masks['a']`). Other kinds: the tensor `name` of the state, which the model may hold under the
    names `also` too (tied weights).
    """

    kind: Literal["argument", "parameter", "buffer", "constant"]
    name: str
    index: int = -1
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeSymbol:
    """A size that varies: name, example value, range, first source, and whether a Dim named it."""

    name: str
    hint: int
    lower: int | None
    upper: int | None
    source: str
    named: bool = True

    def __str__(self) -> str:
        text = f"{self.name} = {self.source}"
        if self.lower is not None and self.upper is not None:
            return f"{text}, {self.lower} <= {self.name} <= {self.upper}"
        if self.lower is not None:
            text += f", {self.name} >= {self.lower}"
        return text if self.upper is None else f"{text}, {self.name} <= {self.upper}"


@dataclass(frozen=True, slots=True)
class SizeCondition:
    """A condition on sizes under which the graph is valid, and its line ("" if declared)."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Mutation:
    """What a call changes besides its result.

    kind "write": the graph writes the tensor's memory in place. kind "rebind": the model's
    attribute `target` becomes the graph's output `output`; an ExportedGraph does that to its own
    `state`.
    """

    kind: Literal["write", "rebind"]
    what: Literal["argument", "parameter", "buffer", "constant"]
    target: str
    output: int = -1

    def __str__(self) -> str:
        verb = "writes to" if self.kind == "write" else "replaces"
        return f"{verb} {self.what} {self.target}"


@dataclass(frozen=True, slots=True)
class Ambient:
    """The states of torch under which the graph was exported: default dtype, autocast by device."""

    default_dtype: torch.dtype
    autocast: tuple[tuple[str, torch.dtype], ...] = ()

    @classmethod
    def now(cls) -> Ambient:
        """This thread's."""
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        return cls(
            torch.get_default_dtype(),
            tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds),
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Autocast as at export, for as long as the block runs."""
        if torch.get_default_dtype() != self.default_dtype:
            raise InputMismatch(
                f"the default dtype was {self.default_dtype} in the export and is "
                f"{torch.get_default_dtype()} now"
            )
        here = Ambient.now()
        with contextlib.ExitStack() as stack:
            if here != self:
                for kind in dict.fromkeys(kind for kind, _ in (*self.autocast, *here.autocast)):
                    dtype = dict(self.autocast).get(kind)
                    stack.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None))
            yield


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GraphContents:
    """The parts of an exported graph.

    `graph_module` takes the values of `inputs` in order and returns a flat tuple; its nodes carry
    `meta["spec"]`, and its `meta["size_env"]` the symbolic sizes, so any backend takes it. `state`
    holds the lifted tensors by name. `guards` says in words what the capture depended on; all of it
    is frozen in the graph.
    """

    name: str
    graph_module: fx.GraphModule
    signature: CallSignature
    inputs: tuple[GraphInput, ...]
    input_specs: tuple[Spec | Expr, ...]
    """By leaf of the arguments: what a tensor must look like; an Expr for an int that may vary."""
    result: Tree
    state: dict[str, torch.Tensor]
    symbols: tuple[SizeSymbol, ...]
    conditions: tuple[SizeCondition, ...]
    guards: tuple[str, ...]
    mutations: tuple[Mutation, ...]
    ambient: Ambient

    def __str__(self) -> str:
        return graph_text(self)

    def __repr__(self) -> str:
        calls = sum(node.op.startswith("call_") for node in self.graph_module.graph.nodes)
        inputs = f"{len(self.signature.paths)} inputs, {len(self.state)} lifted tensors"
        return f"<ExportedGraph {self.name}: {inputs}, {calls} calls>"


# ---------------------------------------------------------------- text

_STARS: dict[inspect._ParameterKind, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def graph_text(exported: GraphContents) -> str:
    """The whole text."""
    names = [node.name for node in placeholders(exported)]
    lines = [f"graph {exported.name}({_parameters(exported)})"]
    lines += [f"  size {symbol}" for symbol in exported.symbols]
    lines += [
        f"  condition {condition.text}{_place(condition.where)}"
        for condition in exported.conditions
        if condition.where
    ]
    for name, item in zip(names, exported.inputs, strict=True):
        if item.kind == "argument":
            if name != item.name:
                lines.append(f"  argument {name} = {item.name}")
        else:
            spec = _spec_text(exported.graph_module.graph, name)
            also = "".join(f" = {other!r}" for other in item.also)
            lines.append(f"  {item.kind} {name}: {spec}   {item.name!r}{also}")
    lines += [f"  {mutation}" for mutation in exported.mutations]
    lines.append("")
    graph = exported.graph_module.graph
    lines += _calls(graph, "  ")
    lines.append(f"  return {result_text(exported)}")
    return "\n".join(lines)


def placeholders(exported: GraphContents) -> list[fx.Node]:
    """The graph's placeholders, in order."""
    return [node for node in exported.graph_module.graph.nodes if node.op == "placeholder"]


def _calls(graph: fx.Graph, indent: str) -> list[str]:
    """The calls of a graph, each followed by the graphs that it holds."""
    lines = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        lines.append(f"{indent}{node_text(node)}")
        if isinstance(node.target, HigherOrder):
            for name, inner in node.target.graphs().items():
                given = ", ".join(
                    f"{item.name}: {spec_text(item.meta['spec'])}"
                    for item in inner.graph.nodes
                    if item.op == "placeholder"
                )
                (output,) = (item for item in inner.graph.nodes if item.op == "output")
                lines.append(f"{indent}  {name}({given})")
                lines += _calls(inner.graph, f"{indent}    ")
                lines.append(f"{indent}    return {argument_text(output.args[0])}")
    return lines


def node_text(node: fx.Node) -> str:
    """One call: `name: spec = target(arguments)   # place`."""
    spec = node.meta.get("spec")
    typed = node.name if spec is None else f"{node.name}: {spec_text(spec)}"
    return f"{typed} = {call_text(node)}{_place(node.meta.get('where', ''))}"


def call_text(node: fx.Node) -> str:
    """The right-hand side of a node."""
    if node.op == "get_attr":
        return f"constant {node.target}"
    arguments = [argument_text(arg) for arg in node.args]
    named = [f"{name}={argument_text(arg)}" for name, arg in node.kwargs.items()]
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join([*arguments[1:], *named])})"
    return f"{target_text(node.target)}({', '.join([*arguments, *named])})"


def target_text(target: Any) -> str:
    """What the user calls a function."""
    if isinstance(target, str):
        return target
    if isinstance(target, HigherOrder):
        return target.name
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", str(target))
    if module.startswith("torch._ops"):
        return f"torch.ops.{target}"
    if module in ("builtins", "_operator"):
        return name if module == "builtins" else f"operator.{name}"
    module = {"torch._C._nn": "torch.nn.functional", "torch.functional": "torch"}.get(
        module, module
    )
    return f"{module}.{name}" if module else f"torch.{name}"


def spec_text(spec: Any) -> str:
    """A Spec, a size, or a nesting of them."""
    if isinstance(spec, (tuple, list)):
        return f"({', '.join(map(spec_text, spec))})"
    return str(spec)


def result_text(exported: GraphContents) -> str:
    """What a call returns, in terms of the graph's nodes and the inputs."""
    (output,) = (node for node in exported.graph_module.graph.nodes if node.op == "output")
    return tree_text(
        exported.result, [argument_text(arg) for arg in output.args[0]], exported.signature.paths
    )  # type: ignore[union-attr]


def _parameters(exported: GraphContents) -> str:
    specs = [str(spec) for spec in exported.input_specs]
    parts, starred = [], False
    for parameter in exported.signature.parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            parts.append("*")
        starred = starred or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        text = tree_text(parameter.tree, specs, exported.signature.paths)
        parts.append(f"{_STARS.get(parameter.kind, '')}{parameter.name}: {text}")
    return ", ".join(parts)


def _spec_text(graph: fx.Graph, name: str) -> str:
    return next(spec_text(node.meta["spec"]) for node in graph.nodes if node.name == name)


def _place(where: str) -> str:
    return f"   # {where}" if where else ""
