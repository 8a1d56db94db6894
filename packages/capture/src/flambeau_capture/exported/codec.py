"""An exported graph <-> JSON: plain values, Specs, trees, and graphs of calls with the graphs that
their nodes hold (torch.cond, torch.vmap, torch.autograd.Function).

What JSON has stands for itself (numbers, strings, true, null, lists as lists). Anything else is an
object with one key that says what it is: {"tuple": [...]}, {"dtype": "float32"}, {"node":
"linear"}. Decoding makes only what is listed here.

    y = torch.sin(x)   <->   {"op": "call_function", "name": "y", "target": "torch.sin",
                              "args": [{"node": "x"}], "kwargs": {"dict": []}, "spec": ...}
    y = vmap(x)        <->   {..., "target": {"record": ["VectorizedMap", {"graph": {"graph":
                              [nodes, outputs]}, "in_dims": ..., ...}]}}
"""

from __future__ import annotations

import dataclasses
import keyword
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from flambeau_capture.exported import targets
from flambeau_capture.exported.tree import (
    CONTAINERS,
    FACTORIES,
    MAKERS,
    NODES,
    Entries,
    Fields,
    Items,
    Made,
    Tree,
    class_name,
)
from flambeau_capture.graphs.graph_module import CapturedGraphModule
from flambeau_capture.graphs.higher_order import HigherOrder, Jacobian
from flambeau_capture.graphs.node_records import NODE_RECORDS
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.size_text import read_number, read_size
from flambeau_prims.sizes import Expr, Size
from flambeau_prims.spec import Spec


class BadFile(ValueError):
    """The data is not what this format holds."""


def check(condition: object, text: str) -> None:
    """BadFile unless the condition is true."""
    if not condition:
        raise BadFile(text)


def tagged(data: Any) -> tuple[str, Any]:
    """The key and value of an object with one key."""
    check(isinstance(data, dict) and len(data) == 1, f"{data!r} is no value of this format")
    ((tag, value),) = data.items()
    return tag, value


# ---------------------------------------------------------------- values and arguments


def encode(value: Any) -> Any:
    """A value of a node or a tree, fx nodes included; TypeError if a file cannot hold it."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if type(value) is list or isinstance(value, fx.immutable_collections.immutable_list):
        return [encode(item) for item in value]
    if type(value) in (tuple, torch.Size):
        return {"tuple": [encode(item) for item in value]}
    if type(value) is slice:
        return {"slice": [encode(value.start), encode(value.stop), encode(value.step)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    for kind, (tag, write, _) in _SCALARS.items():
        if type(value) is kind:
            return {tag: write(value)}
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return {"operator": targets.name_of(value)}
    if isinstance(value, type):
        return {"type": targets.name_of_type(value)}
    raise TypeError(
        f"an exported file cannot hold a {type(value).__module__}.{type(value).__qualname__}"
    )


def decode(data: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """The value that `encode` wrote."""
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return [decode(item, nodes) for item in data]
    tag, value = tagged(data)
    if tag == "node":
        check(
            isinstance(value, str) and value in nodes,
            f"node {value!r} is read before it is computed",
        )
        return nodes[value]
    if tag == "tuple":
        return tuple(decode(item, nodes) for item in value)
    if tag == "slice":
        return slice(*(decode(item, nodes) for item in value))
    if tag == "dict":
        return {decode(key, nodes): decode(item, nodes) for key, item in value}
    if tag == "float":
        check(value in ("nan", "inf", "-inf"), f"{value!r} is no float")
        return float(value)
    if tag == "operator":
        return targets.function_named(value)
    if tag == "type":
        return targets.type_named(value)
    for known, _, read in _SCALARS.values():
        if tag == known:
            return read(value)
    raise BadFile(f"a value of kind {tag!r} is not known")


def _of_torch(kind: type) -> Callable[[str], Any]:
    def read(name: str) -> Any:
        found = getattr(torch, name, None) if isinstance(name, str) else None
        check(type(found) is kind, f"torch has no {kind.__name__} {name!r}")
        return found

    return read


def _torch_name(value: Any) -> str:
    return str(value).removeprefix("torch.")


_SCALARS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    complex: (
        "complex",
        lambda c: [encode(c.real), encode(c.imag)],
        lambda d: complex(*(decode(part, {}) for part in d)),
    ),
    bytes: ("bytes", lambda b: b.hex(), bytes.fromhex),
    type(...): ("ellipsis", lambda _: True, lambda _: ...),
    range: ("range", lambda r: [r.start, r.stop, r.step], lambda d: range(*d)),
    torch.dtype: ("dtype", _torch_name, _of_torch(torch.dtype)),
    torch.layout: ("layout", _torch_name, _of_torch(torch.layout)),
    torch.memory_format: ("memory_format", _torch_name, _of_torch(torch.memory_format)),
    torch.device: ("device", str, torch.device),
}  # type: ignore[dict-item]
"""Kinds of value: the tag, how it is written, how it is read."""


# ---------------------------------------------------------------- specs


def encode_spec(spec: Any) -> Any:
    """A Spec, a size, or a nesting of these as a node's result is; None for what has no spec."""
    if isinstance(spec, Spec):
        return {
            "spec": [
                _torch_name(spec.dtype),
                str(spec.device),
                [_size_data(size) for size in spec.shape],
                [_size_data(size) for size in spec.stride],
                _size_data(spec.offset),
            ]
        }
    if isinstance(spec, (tuple, list)):
        return {"each": [encode_spec(item) for item in spec]}
    if isinstance(spec, FloatExpr):
        return {"number": str(spec)}
    return {"size": _size_data(spec)} if type(spec) is int or isinstance(spec, Expr) else None


def decode_spec(data: Any, symbols: Mapping[str, Size]) -> Any:
    """What `encode_spec` wrote, over these symbols."""
    if data is None:
        return None
    tag, value = tagged(data)
    if tag == "each":
        return tuple(decode_spec(item, symbols) for item in value)
    if tag == "size":
        return _read_size(value, symbols)
    if tag == "number":
        return read_number(value, symbols)
    check(tag == "spec" and len(value) == 5, f"{data!r} is no spec")
    dtype, device, shape, stride, offset = value
    return Spec.of(
        [_read_size(size, symbols) for size in shape],
        stride=[_read_size(size, symbols) for size in stride],
        dtype=_of_torch(torch.dtype)(dtype),
        device=torch.device(device),
        offset=_read_size(offset, symbols),
    )


def _size_data(size: Size) -> int | str:
    return str(size) if isinstance(size, Expr) else size


def _read_size(data: Any, symbols: Mapping[str, Size]) -> Size:
    if type(data) is int:
        return data
    check(isinstance(data, str), f"{data!r} is no size")
    return read_size(data, symbols)


# ---------------------------------------------------------------- trees

_TAGS = {kind: tag for tag, kind in NODES.items()}
_NUMBERED = (Items, Entries, Fields, Made)
"""Trees that may occur again."""


class TreeWriter:
    """Trees as JSON: {tag: fields}, see `_FIELDS`. A numbered tree that recurs is a reference."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.classes: dict[str, None] = {}
        """The names of the classes that reading needs, beyond builtin containers."""

    def write(self, tree: Tree) -> Any:
        """One tree."""
        number = self._numbers.get(id(tree))
        if number is not None:
            return {"again": number}
        parts = [
            _FIELDS[field.type][0](self, getattr(tree, field.name))
            for field in dataclasses.fields(tree)
        ]
        if isinstance(tree, _NUMBERED):
            self._numbers[id(tree)] = len(self._numbers)
        return {_TAGS[type(tree)]: parts[0] if len(parts) == 1 else parts}

    def cls(self, cls: type) -> str:
        """The name of a class, which is noted if it must be looked up."""
        name = class_name(cls)
        if name not in CONTAINERS:
            self.classes[name] = None
        return name


class TreeReader:
    """JSON as trees; `classes` are those that the file names."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = {**CONTAINERS, **classes}
        self._numbered: list[Tree] = []

    def read(self, data: Any) -> Tree:
        """One tree."""
        tag, value = tagged(data)
        if tag == "again":
            known = type(value) is int and 0 <= value < len(self._numbered)
            check(known, "a reference to nothing")
            return self._numbered[value]
        check(tag in NODES, f"a tree of kind {tag!r} is not known")
        fields = dataclasses.fields(NODES[tag])
        parts = [value] if len(fields) == 1 else value
        tree: Tree = NODES[tag](
            *(_FIELDS[field.type][1](self, part) for field, part in zip(fields, parts, strict=True))
        )
        if isinstance(tree, Made):
            check(tree.maker in MAKERS, f"{tree.maker!r} is nothing that a file may make")
        elif isinstance(tree, (Items, Entries)):
            bases = dict if isinstance(tree, Entries) else (list, tuple, set, frozenset)
            check(issubclass(tree.cls, bases), f"class {value[0]!r} is not of this kind")
        if isinstance(tree, _NUMBERED):
            self._numbered.append(tree)
        return tree

    def cls(self, name: str) -> type:
        """The class of a name."""
        check(name in self._classes, f"class {name!r} is not of this kind")
        return self._classes[name]


def _index(reader: TreeReader, data: Any) -> int:
    check(type(data) is int and data >= 0, f"{data!r} is no index")
    return int(data)


_FIELDS: dict[Any, tuple[Callable[[TreeWriter, Any], Any], Callable[[TreeReader, Any], Any]]] = {
    "int": (lambda _, value: value, _index),
    "str": (lambda _, value: value, lambda _, data: data),
    "Any": (lambda _, value: encode(value), lambda _, data: decode(data, {})),
    "type": (TreeWriter.cls, TreeReader.cls),
    "type | None": (
        lambda _, cls: cls and cls.__name__,
        lambda _, name: None if name is None else FACTORIES[name],
    ),
    "tuple[str, ...]": (lambda _, names: list(names), lambda _, names: tuple(names)),
    "tuple[Tree, ...]": (
        lambda writer, items: [writer.write(item) for item in items],
        lambda reader, items: tuple(map(reader.read, items)),
    ),
    "tuple[tuple[str, Tree], ...]": (
        lambda writer, items: [[name, writer.write(item)] for name, item in items],
        lambda reader, items: tuple((name, reader.read(item)) for name, item in items),
    ),
    "tuple[tuple[Tree, Tree], ...]": (
        lambda writer, items: [[writer.write(key), writer.write(item)] for key, item in items],
        lambda reader, items: tuple((reader.read(key), reader.read(item)) for key, item in items),
    ),
}
"""How a field of a tree is written and read, by its annotation."""


_META = ("where", "source", "requires_grad", "hooked", "pure")


# ---------------------------------------------------------------- graphs, written


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
            case "placeholder" if node.target != node.name:
                data["target"] = node.target
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
    if NODE_RECORDS.get(type(value).__name__) is type(value):
        parts = {
            item.name: _part_data(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
        return {"record": [type(value).__name__, parts]}
    if isinstance(value, Mapping):
        return {"map": [[encode(key), _part_data(item)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        return {"each": [_part_data(item) for item in value]}
    return encode(value)


# ---------------------------------------------------------------- graphs, read


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
            target = identifier(item.get("target", name))
            node = graph.create_node("placeholder", target, (), {}, name)
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


def _part(data: Any, symbols: Mapping[str, Size]) -> Any:
    if not isinstance(data, dict):
        return decode(data, {})
    tag, value = tagged(data)
    match tag:
        case "graph":
            return CapturedGraphModule(torch.nn.Module(), decode_graph(data, symbols))
        case "record":
            name, parts = value
            check(name in NODE_RECORDS, f"{name!r} is no part of a graph")
            made = NODE_RECORDS[name](**{key: _part(part, symbols) for key, part in parts.items()})
            if isinstance(made, Jacobian):
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
