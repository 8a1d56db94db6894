"""A captured graph as JSON that tells any two apart: what `stored_graphs` makes keys of.

    relu: call_function[torch.relu](x)   ->   ["call_function", "relu", ["torch", ...], ...]

Functions are named as every process finds them; NotStored for what has no such name, or is no plain
data. Sizes may be symbolic: they are their texts, over the symbols and guards of `sizes_as_json`.
It is imported where a graph is captured: what is read by its key needs none of this.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau.held_graphs import OPERATORS, graphs_within, operator_name
from flambeau.not_stored import NotStored
from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_prims.lazy_exports import import_apart
from flambeau_prims.size_floats import Condition, FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from torch import fx

    from flambeau_prims.sizes import SizeEnv


def meta_as_json(gm: fx.GraphModule) -> list[Any]:
    """A graph's meta data."""
    return sorted((name, as_json(value)) for name, value in gm.meta.items() if name != "size_env")


def sizes_as_json(env: SizeEnv | None) -> list[Any]:
    """The symbols of sizes with their hints, and what is known of them; [] without symbols."""
    if env is None:
        return []
    symbols = [[name, atom.hint] for name, atom in env.symbols.items()]
    return [symbols, list(map(str, env.guards))]


def check_static(gm: fx.GraphModule) -> None:
    """NotStored if a size or number of a graph is symbolic."""
    env = gm.meta.get("size_env")
    if env is not None:
        raise NotStored("data-dependent" if env.unbacked_atoms else "symbolic")
    for node in gm.graph.nodes:
        if _is_symbolic(node.meta.get("spec")):
            raise NotStored("symbolic")


def _is_symbolic(spec: Any) -> bool:
    if isinstance(spec, Spec):
        return spec.env is not None
    if isinstance(spec, (tuple, list)):
        return any(map(_is_symbolic, spec))
    return isinstance(spec, (Expr, FloatExpr, Condition))


def inputs_as_json(examples: list[Any]) -> list[Any]:
    """The inputs as the compiler sees them, and which share their memory."""
    memory: dict[int, int] = {}
    described: list[list[Any]] = []
    for position, x in enumerate(examples):
        if type(x) in (int, float):
            described.append([as_json(x)])
            continue
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise NotStored("foreign-input", type(x).__name__)
        if x.layout is not torch.strided:
            raise NotStored("foreign-input", str(x.layout))
        described.append(
            [
                type(x).__name__, str(x.dtype), _device_name(x.device), list(x.shape),
                list(x.stride()),
                int(x.storage_offset()), torch._C._dispatch_keys(x).raw_repr(), x.requires_grad,
                x.is_leaf, x.is_inference(), x.is_conj(), x.is_neg(), x._is_view(),
                memory.setdefault(x.untyped_storage()._cdata, position),
            ]
        )  # fmt: skip
    return described


def nodes_as_json(gm: fx.GraphModule) -> list[Any]:
    """Each node, in the graph's order."""
    return [
        [
            node.op,
            node.name,
            _target(node),
            as_json(node.args),
            as_json(node.kwargs),
            sorted((name, as_json(value)) for name, value in node.meta.items() if name != "source"),
            str(node.meta.get("source", "")),
        ]
        for node in gm.graph.nodes
    ]


def _target(node: fx.Node) -> Any:
    if node.op in ("placeholder", "output", "call_method"):
        return node.target
    if node.op != "call_function":
        raise NotStored("foreign-call", f"{node.op} {node.target}")
    return _function(node.target)


_TORCH = str(Path(torch.__file__).parent) + os.sep
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def _function(function: Any) -> list[Any]:
    """The name by which every process finds a function of torch, Python or its operators."""
    if isinstance(function, OPERATORS):
        return ["operator", str(function), _rules(function)]
    if dataclasses.is_dataclass(function) and isinstance(function, HigherOrder):
        return ["graphs", _part(function)]
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    owner = getattr(function, "__objclass__", None)
    if isinstance(function, types.FunctionType):
        return _torch_function(function)
    if isinstance(function, _BUILTINS):
        holder = function.__self__ if isinstance(function, types.BuiltinFunctionType) else owner
        if holder is None or isinstance(holder, (types.ModuleType, type)):
            place = getattr(holder, "__name__", "")
            return ["builtin", str(module), str(place), str(name)]
    raise NotStored("foreign-call", f"{module}.{name}")


def _rules(operator: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> str:
    """The digest of the rules of a program's operator, "" of one of torch's."""
    name = operator_name(operator)
    if name.startswith(_OPERATORS_OF_TORCH):
        return ""
    digest: str | None = import_apart("flambeau.custom_operators").rules_digest(name)
    if digest is None:
        raise NotStored("foreign-call", name)
    return digest


_OPERATORS_OF_TORCH = ("aten::", "prims::")


def operators_of_the_program(gm: fx.GraphModule) -> dict[str, str]:
    """The operators of the program that a graph calls, and the digests of their rules."""
    targets = (node.target for graph in graphs_within(gm) for node in graph.nodes)
    operators = {
        operator_name(target): target for target in targets if isinstance(target, OPERATORS)
    }
    return {name: rules for name, operator in operators.items() if (rules := _rules(operator))}


def _part(value: Any) -> Any:
    """A node that holds graphs, or a part of one, as JSON that tells any two apart."""
    if isinstance(value, torch.fx.GraphModule):
        return {"graph": nodes_as_json(value)}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        parts = [_part(getattr(value, field.name)) for field in fields]
        return {"record": [type(value).__name__, parts]}
    if isinstance(value, Mapping):
        return {"map": [[as_json(key), _part(item)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        return {"each": [_part(item) for item in value]}
    return as_json(value)


def _torch_function(function: types.FunctionType) -> list[Any]:
    """A function of torch written in Python, which calls functions of torch alone."""
    code = function.__code__
    callees = [
        value
        for name in code.co_names
        for holder in (function.__globals__, vars(torch), vars(torch._C._nn))
        if isinstance(value := holder.get(name), types.FunctionType)
    ]
    for each in (function, *callees):
        # Of a function that has taken another's name, the code is elsewhere.
        if not each.__code__.co_filename.startswith(_TORCH):
            raise NotStored("foreign-call", f"{each.__module__}.{each.__qualname__}")
    held = [as_json(cell.cell_contents) for cell in function.__closure__ or ()]
    defaults = [as_json(function.__defaults__), as_json(function.__kwdefaults__)]
    return [
        "torch",
        function.__module__,
        function.__qualname__,
        code.co_firstlineno,
        held,
        defaults,
    ]


def as_json(value: Any) -> Any:
    """An argument, or meta data, as JSON that tells any two apart."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    write = _WRITERS.get(kind)
    return _of_other_type(value) if write is None else write(value)


def _items(value: Iterable[Any]) -> Any:
    return {type(value).__name__: [as_json(item) for item in value]}


def _dict(value: dict[Any, Any]) -> Any:
    return {"dict": [[as_json(key), as_json(item)] for key, item in value.items()]}


def _spec(value: Spec) -> Any:
    geometry = map(repr, (value.shape, value.stride, value.offset, value.dtype))
    return {"spec": [*geometry, _device_name(value.device)]}


def _device(value: torch.device) -> Any:
    return {"device": _device_name(value)}


def _device_name(device: torch.device) -> str:
    """The name of a device that the key says enough of: it tells GPUs apart once they are in use
    (`surroundings`).
    """
    if device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_initialized()):
        return str(device)
    raise NotStored("device", str(device))


def _of_other_type(value: Any) -> Any:
    if isinstance(value, dict):
        return _dict(value)
    if callable(value):
        return {"function": _function(value)}
    raise NotStored("foreign-constant", type(value).__name__)


_AS_THEY_ARE = frozenset({bool, str, type(None)})
_WRITERS: dict[type, Callable[[Any], Any]] = {
    int: lambda value: {"int": str(value)} if value.bit_length() > 53 else value,
    float: lambda value: {"float": value.hex()},
    complex: lambda value: {"complex": [value.real.hex(), value.imag.hex()]},
    torch.fx.Node: lambda value: {"node": value.name},
    **dict.fromkeys(
        (tuple, list, torch.Size, torch.fx.immutable_collections.immutable_list), _items
    ),
    **dict.fromkeys((dict, torch.fx.immutable_collections.immutable_dict), _dict),
    slice: lambda value: {
        "slice": [as_json(item) for item in (value.start, value.stop, value.step)]
    },
    Spec: _spec,
    **dict.fromkeys((Expr, FloatExpr, Condition), lambda value: {"size": str(value)}),
    torch.device: _device,
    **dict.fromkeys(
        (torch.dtype, torch.layout, torch.memory_format, type(Ellipsis)),
        lambda value: {"constant": repr(value)},
    ),
}
"""How a value is written, by its exact type."""
