"""Graphs of torch calls without a capture stage: run a program once on real tensors and note its
calls.
"""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from flambeau_autograd import AutogradOptions, aot
from flambeau_prims.evaluate import run_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class CallRecorder(TorchFunctionMode):
    """Notes every torch call as a node; tensors are known by identity."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.attributes: dict[str, torch.Tensor] = {}
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Any] = []
        for index, value in enumerate(inputs):
            node = self.graph.placeholder(f"input_{index}")
            self.know(value, node)

    def know(self, value: Any, node: fx.Node) -> None:
        self.alive.append(value)
        self.nodes.setdefault(id(value), node)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor):
                return result
            if func is torch.Tensor.T.__get__:
                node = self.graph.call_function(torch.t, self.read(args))
                self.know(result, node)
                return result
            raise AssertionError(f"property {func} gives a tensor")
        read = self.read(tuple(args)), self.read(kwargs)
        result = func(*args, **kwargs)
        if result is not None and not isinstance(result, (torch.Tensor, tuple, list)):
            return result  # a question about a tensor, answered once and for all
        node = self.graph.call_function(func, *read)
        if isinstance(result, torch.Tensor):
            self.know(result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self.know(item, self.graph.call_function(operator.getitem, (node, index)))
        return result

    def read(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            if id(arg) not in self.nodes:
                name = f"constant_{len(self.attributes)}"
                self.attributes[name] = arg
                self.know(arg, self.graph.get_attr(name))
            return self.nodes[id(arg)]
        if isinstance(arg, torch.Size):
            return arg
        if isinstance(arg, (tuple, list)):
            return type(arg)(self.read(item) for item in arg)
        if isinstance(arg, dict):
            return {key: self.read(item) for key, item in arg.items()}
        if isinstance(arg, slice):
            return slice(self.read(arg.start), self.read(arg.stop), self.read(arg.step))
        return arg


def record_calls(program: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph of `program(*inputs)`."""
    recorder = CallRecorder(inputs)
    grad = torch.is_grad_enabled()
    try:
        with recorder:
            results = program(*inputs)
    finally:
        torch._C._set_grad_enabled(grad)
    recorder.graph.output(recorder.read(results if isinstance(results, tuple) else (results,)))
    return fx.GraphModule(recorder.attributes, recorder.graph)


def record_module(
    module: torch.nn.Module, args: Sequence[Any], call: Callable[..., Any]
) -> fx.GraphModule:
    """The graph of `call(module, *args)` with the module's tensors as inputs after `args`; the
    module is left as it was.
    """
    mine = copy.deepcopy(module)
    tensors = module_tensors(mine)
    args = [
        arg.detach().clone().requires_grad_(arg.requires_grad)
        if isinstance(arg, torch.Tensor)
        else arg
        for arg in args
    ]
    return record_calls(lambda *flat: call(mine, *flat[: len(args)]), [*args, *tensors])


def module_tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, then buffers, each once."""
    return [*module.parameters(), *module.buffers()]


class GraphLog:
    """A compiler of graphs that evaluates them, and keeps them for inspection."""

    def __init__(self) -> None:
        self.graphs: dict[str, Any] = {}

    def __call__(self, graph: Any, kind: str) -> Callable[..., tuple[Any, ...]]:
        self.graphs[kind] = graph
        return lambda *args: run_graph(graph, args)


def compile_program(
    program: Callable[..., Any], inputs: Sequence[Any], log: GraphLog | None = None, **options: Any
) -> Callable[..., tuple[Any, ...]]:
    """`program` through aot, with graphs evaluated call by call."""
    examples = clones(inputs)
    gm = record_calls(program, clones(inputs))
    options.setdefault("check", True)
    return aot(gm, examples, log or GraphLog(), options=AutogradOptions(**options))


def clones(inputs: Sequence[Any]) -> list[Any]:
    """Copies in the same layout, leaves where the originals are, equal flags."""
    made: list[Any] = []
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            made.append(x)
            continue
        storage = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype)
        copied = (
            storage.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x.detach()).detach()
        )
        copied.requires_grad_(x.requires_grad)
        made.append(copied if x.is_leaf else copied * 1)
    return made
