"""Graphs of calls <-> JSON, with the graphs that nodes hold (torch.cond, torch.vmap,
torch.autograd.Function).

y = torch.sin(x)     <->   {"op": "call_function", "name": "y", "target": "torch.sin", "args": [{"node": "x"}], "kwargs": {"dict": []}, "spec": ...}
y = vmap(x)          <->   {..., "target": {"record": ["VectorizedMap", {"graph": {"graph": [nodes, outputs]}, "in_dims": ..., ...}]}}
"""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from flambeau_capture.exported import targets
from flambeau_capture.exported.codec import (
    BadFile,
    check,
    decode,
    decode_spec,
    encode,
    encode_spec,
    tagged,
)
from flambeau_capture.graphs import higher_order
from flambeau_capture.graphs.graph_module import CapturedGraphModule
from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_prims.sizes import Size

_META = ("where", "source", "requires_grad", "pure")


# ---------------------------------------------------------------- writing


def encode_graph(graph: fx.Graph) -> dict[str, Any]:
    """A graph's nodes and outputs; TypeError names what a file cannot hold."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    nodes = [_node_data(node) for node in graph.nodes if node.op != "output"]
    return {"graph": [nodes, encode(output.args[0])]}


def _node_data(node: fx.Node) -> dict[str, Any]:
    data: dict[str, Any] = {"op": node.op, "name": node.name}
    try:
        match node.op:
            case "call_function":
                data["target"] = _target_data(node.target)
            case "call_method":
                data["target"] = targets.check_method(node.target)
            case "placeholder":
                pass
            case _:
                held = getattr(node.graph.owning_module, str(node.target), None)
                raise TypeError(
                    f"an exported file cannot hold the {type(held).__name__} {node.target}"
                )
        data["args"], data["kwargs"] = encode(list(node.args)), encode(dict(node.kwargs))
    except (TypeError, targets.UnknownTarget) as error:
        where = node.meta.get("where") or "the graph"
        raise TypeError(
            f"{where}: {node.format_node() or node.name} cannot be saved: {error}"
        ) from error
    data["spec"] = encode_spec(node.meta.get("spec"))
    for key in _META:
        if key in node.meta:
            data[key] = node.meta[key]
    return data


def _target_data(target: Any) -> Any:
    return _part_data(target) if isinstance(target, HigherOrder) else targets.name_of(target)


def _part_data(value: Any) -> Any:
    """A node that holds graphs, or a part of one."""
    if isinstance(value, fx.GraphModule):
        return encode_graph(value.graph)
    if type(value).__name__ in _RECORDS and dataclasses.is_dataclass(value):
        parts = {
            item.name: _part_data(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
        return {"record": [type(value).__name__, parts]}
    if isinstance(value, Mapping):
        return {"map": [[encode(key), _part_data(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"each": [_part_data(item) for item in value]}
    return encode(value)


# ---------------------------------------------------------------- reading


def decode_graph(data: Any, symbols: Mapping[str, Size]) -> fx.Graph:
    """The graph that `encode_graph` wrote, over these symbols."""
    tag, value = tagged(data)
    check(tag == "graph" and len(value) == 2, "no graph")
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for item in value[0]:
        name = identifier(item["name"])
        check(name not in nodes, f"two nodes are called {name}")
        nodes[name] = _node(graph, item, name, nodes, symbols)
    outputs = decode(value[1], nodes)
    output = graph.output(outputs)
    output.meta["spec"] = tuple(node.meta.get("spec") for node in outputs)
    return graph


def _node(
    graph: fx.Graph,
    item: Mapping[str, Any],
    name: str,
    nodes: Mapping[str, fx.Node],
    symbols: Mapping[str, Size],
) -> fx.Node:
    match item["op"]:
        case "placeholder":
            node = graph.placeholder(name)
        case "call_function":
            target = _target(item["target"], symbols)
            node = graph.create_node("call_function", target, *_arguments(item, nodes), name)
            if target is getattr:
                check(
                    node.args[1:] and node.args[1] in targets.ATTRIBUTES,
                    f"attribute {node.args[1:]} is read",
                )
        case "call_method":
            method = targets.check_method(item["target"])
            node = graph.create_node("call_method", method, *_arguments(item, nodes), name)
        case op:
            raise BadFile(f"a node of kind {op!r}")
    node.meta["spec"] = decode_spec(item["spec"], symbols)
    for key in _META:
        if key in item:
            node.meta[key] = item[key]
    return node


def _arguments(item: Mapping[str, Any], nodes: Mapping[str, fx.Node]) -> tuple[Any, Any]:
    args, kwargs = decode(item["args"], nodes), decode(item["kwargs"], nodes)
    check(isinstance(kwargs, dict) and all(map(identifier, kwargs)), "arguments without names")
    return tuple(args), kwargs


def _target(data: Any, symbols: Mapping[str, Size]) -> Any:
    if isinstance(data, str):
        return targets.function_named(data)
    target = _part(data, symbols)
    check(isinstance(target, HigherOrder), f"{data!r} is nothing to call")
    return target


_RECORDS: dict[str, Any] = {
    name: kind
    for name, kind in vars(higher_order).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
"""The parts of nodes that hold graphs, by name."""


def _part(data: Any, symbols: Mapping[str, Size]) -> Any:
    if not isinstance(data, dict):
        return decode(data, {})
    tag, value = tagged(data)
    match tag:
        case "graph":
            return CapturedGraphModule(torch.nn.Module(), decode_graph(data, symbols))
        case "record":
            name, parts = value
            check(name in _RECORDS, f"{name!r} is no part of a graph")
            made = _RECORDS[name](**{key: _part(part, symbols) for key, part in parts.items()})
            if isinstance(made, higher_order.Jacobian):
                check(made.name in ("jacrev", "jacfwd"), f"{made.name!r} is no transform")
            return made
        case "map":
            return {decode(key, {}): _part(part, symbols) for key, part in value}
        case "each":
            return tuple(_part(part, symbols) for part in value)
    return decode(data, {})


def identifier(name: Any) -> str:
    """A name that may stand in generated code; BadFile for anything else."""
    known = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    check(known, f"{name!r} is no name")
    return str(name)
