"""Calls of TorchScript functions and modules, traced through as calls of torch's own functions are.

What a module's code reads of it and its submodules is known from the code: tensors are inputs of
the graph, and plain values are guarded. A module whose code sets attributes breaks the graph.

One that draws random numbers runs apart, as it is: TorchScript draws in other ways once it has
compiled the function. One that asks what a tensor holds breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.script_calls import Path, ScriptCall, ScriptModuleCall, value_at
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf, Constant
from flambeau_prims.error_texts import SCRIPT_REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_capture.interpreter.torch_calls.tape import TapeRecorder


def call_script_function(
    machine: TapeRecorder, function: Any, args: Any, kwargs: Any, in_place: bool
) -> Any:
    """Run and record a call of a `torch.jit.ScriptFunction`."""
    source = machine.objects.source_of(function)
    if source is None:
        raise GraphBreak("unknown-c-function", "call of a TorchScript function of unknown origin")
    machine.guard("IS", source, function)
    return _record(machine, ScriptCall(function), f"function {function.name}", args, kwargs)


def call_script_method(
    machine: TapeRecorder, method: Any, args: Any, kwargs: Any, in_place: bool
) -> Any:
    """Run and record a call of a `torch.ScriptMethod`."""
    return _call_module(machine, method, method.name, args, kwargs)


SCRIPT_CALLS: dict[type, Callable[[Any, Any, Any, Any, bool], Any]] = {
    torch.jit.ScriptFunction: call_script_function,
    torch._C.ScriptMethod: call_script_method,
}
"""Which function calls what torch.jit has made, by its type."""


def call_script_module(machine: TapeRecorder, module: Any, args: Any, kwargs: Any) -> Any:
    """Run and record a call of a `torch.jit.ScriptModule` without hooks."""
    return _call_module(machine, module, "forward", args, kwargs)


def _call_module(machine: TapeRecorder, held: Any, name: str, args: Any, kwargs: Any) -> Any:
    source = machine.objects.source_of(held)
    if source is None:
        raise GraphBreak("unknown-c-function", "call of a TorchScript module of unknown origin")
    machine.guard("IS", source, held)
    module = _module_of(held)
    tensors, values = _read_by(module, name)
    machine.guard("EQUALS", CallOf(values_of, (source, Constant(values))), values_of(held, values))
    given = [
        machine.objects.wrap(tensor_of(held, path), CallOf(tensor_of, (source, Constant(path))))
        for path in tensors
    ]
    target = ScriptModuleCall(module, name, tensors)
    return _record(machine, target, f"module {module.qualified_name}", (given, *args), kwargs)


def _module_of(held: Any) -> Any:
    """The `torch._C.ScriptModule` of a module, or of a method."""
    return held._c if isinstance(held, torch.jit.ScriptModule) else held.owner


def _record(machine: TapeRecorder, target: Any, what: str, args: Any, kwargs: Any) -> Any:
    calls = machine.tape.calls
    before = len(calls)
    try:
        result = machine.tape.call_function(target, args, kwargs)
    except RuntimeError as error:
        raised = isinstance(error, torch.jit.Error)  # by the program's code
        if raised or not SCRIPT_REFUSED.matches(error):
            raise
        detail = f"the TorchScript {what} fails on tensors without contents"
        raise GraphBreak("unknown-c-function", detail) from error
    for call in calls[before:]:
        call.untraced |= call.random
    return result


def tensor_of(held: Any, path: Path) -> Any:
    """A tensor that the code of a module, or of a method, reads."""
    return value_at(_module_of(held), path)


def values_of(held: Any, paths: tuple[Path, ...]) -> tuple[Any, ...]:
    """The plain values that the code of a module, or of a method, reads."""
    module = _module_of(held)
    return tuple(_plain(value_at(module, path)) for path in paths)


_PLAIN = (bool, int, float, complex, str, type(None), torch.device, torch.dtype)


def _plain(value: Any) -> Any:
    """A value to compare with later ones; a Python object that equals no other if it is not plain.

    A float by its digits: NaN is itself, and -0.0 is not 0.0.
    """
    if type(value) in (list, tuple):
        return tuple(map(_plain, value))
    if type(value) is float:
        return repr(value)
    return value if type(value) in _PLAIN else object()


def _read_by(module: Any, method: str) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Where the tensors and the plain values are that the code of a method reads."""
    graph = module._get_method(method).inlined_graph
    owners: dict[str, Path] = {next(iter(graph.inputs())).debugName(): ()}
    tensors: dict[Path, None] = {}
    values: dict[Path, None] = {}
    for node in _nodes(graph):
        if node.kind() in _REFUSED:
            detail = f"the TorchScript module {module.qualified_name} {_REFUSED[node.kind()]}"
            raise GraphBreak("unknown-c-function", detail)
        if node.kind() != "prim::GetAttr":
            continue
        owner = owners.get(next(iter(node.inputs())).debugName())
        if owner is None:  # of an object that the code has made
            continue
        path = (*owner, node.s("name"))
        value = value_at(module, path)
        if isinstance(value, torch._C.ScriptModule):
            owners[node.output().debugName()] = path
        elif isinstance(value, torch.Tensor):
            tensors[path] = None
        else:
            values[path] = None
            if _plain(value) != _plain(value):
                detail = f"the TorchScript module {module.qualified_name} reads {'.'.join(path)}"
                raise GraphBreak("unknown-c-function", f"{detail}, a {type(value).__name__}")
    return tuple(tensors), tuple(values)


_REFUSED = {
    "prim::SetAttr": "sets an attribute",
    "prim::CallMethod": "calls a method that only its calls know",
    "prim::PythonOp": "calls Python",
    "prim::fork": "forks",
}


def _nodes(block: Any) -> Iterator[Any]:
    """The nodes of a TorchScript graph, those in its blocks included."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
