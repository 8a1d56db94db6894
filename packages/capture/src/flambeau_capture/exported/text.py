"""An exported graph as text.

graph Net(x: f32[batch, 8], *, mask: bool[batch] | None)
  size batch = x.size(0), batch >= 2
  parameter linear_weight: f32[4, 8]   'linear.weight'

  linear: f32[batch, 4] = torch.nn.functional.linear(x, linear_weight)   # net.py:12
  return {'y': linear}
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import fx

from flambeau_capture.exported.tree import (
    Constant,
    Entries,
    Fields,
    Given,
    GivenContainer,
    Held,
    Items,
    Leaf,
    Made,
    Opaque,
    SizeOf,
    Tree,
)
from flambeau_capture.graphs.higher_order import HigherOrder

if TYPE_CHECKING:
    from flambeau_capture.exported.contents import GraphContents

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


def argument_text(arg: Any) -> str:
    """An argument of a node, nodes by their names."""
    if isinstance(arg, fx.Node):
        return arg.name
    if isinstance(arg, tuple):
        items = ", ".join(map(argument_text, arg))
        return f"({items},)" if len(arg) == 1 else f"({items})"
    if isinstance(arg, list):
        return f"[{', '.join(map(argument_text, arg))}]"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{key!r}: {argument_text(item)}" for key, item in arg.items()) + "}"
    if isinstance(arg, slice):
        return f"slice({argument_text(arg.start)}, {argument_text(arg.stop)}, {argument_text(arg.step)})"
    return "..." if arg is ... else repr(arg)


def spec_text(spec: Any) -> str:
    """A Spec, a size, or a nesting of them."""
    if isinstance(spec, (tuple, list)):
        return f"({', '.join(map(spec_text, spec))})"
    return str(spec)


def result_text(exported: GraphContents) -> str:
    """What a call returns, in terms of the graph's nodes and the inputs."""
    (output,) = (node for node in exported.graph_module.graph.nodes if node.op == "output")
    return tree_text(exported.result, [argument_text(arg) for arg in output.args[0]], exported)  # type: ignore[union-attr]


def tree_text(tree: Tree, outputs: list[str], exported: GraphContents) -> str:
    """A tree as a Python-like expression."""

    def text(part: Tree) -> str:
        return tree_text(part, outputs, exported)

    match tree:
        case Leaf(index=index):
            return outputs[index]
        case Given(index=index):
            return exported.signature.paths[index]
        case GivenContainer(index=index):
            return f"<container {index} of the arguments>"
        case Held(name=name):
            return repr(name)
        case SizeOf(text=size):
            return size
        case Constant(value=value):
            return argument_text(value)
        case Opaque(type_name=name):
            return f"<{name}>"
        case Items(cls=cls, items=items):
            inner = ", ".join(map(text, items))
            if cls is tuple:
                return f"({inner},)" if len(items) == 1 else f"({inner})"
            return f"[{inner}]" if cls is list else f"{cls.__qualname__}({inner})"
        case Entries(cls=cls, items=entries):
            inner = ", ".join(f"{text(key)}: {text(item)}" for key, item in entries)
            return f"{{{inner}}}" if cls is dict else f"{cls.__qualname__}({{{inner}}})"
        case Fields(cls=cls, items=fields):
            inner = ", ".join(f"{name}={text(item)}" for name, item in fields)
            return f"{cls.__qualname__}({inner})"
        case Made(maker=maker, items=items):
            return f"{maker}({', '.join(map(text, items))})"
    raise TypeError(f"no text for a {type(tree).__name__}")


def _parameters(exported: GraphContents) -> str:
    specs = [str(spec) for spec in exported.input_specs]
    parts, starred = [], False
    for parameter in exported.signature.parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            parts.append("*")
        starred = starred or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        text = tree_text(parameter.tree, specs, exported)
        parts.append(f"{_STARS.get(parameter.kind, '')}{parameter.name}: {text}")
    return ", ".join(parts)


def _spec_text(graph: fx.Graph, name: str) -> str:
    return next(spec_text(node.meta["spec"]) for node in graph.nodes if node.name == name)


def _place(where: str) -> str:
    return f"   # {where}" if where else ""
