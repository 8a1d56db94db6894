"""Tapes recorded from real tensors, and their evaluation: what tests of single passes run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Recorder(TorchDispatchMode):
    """Records every ATen call on real tensors."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.values: dict[int, Value] = {}
        self.alive: list[torch.Tensor] = []
        self.graph = Graph(name="tape")
        self.constants: list[torch.Tensor] = []
        self.graph.inputs = [self.value(tensor, f"x{i}") for i, tensor in enumerate(inputs)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def value(self, tensor: torch.Tensor, name: str) -> Value:
        self.alive.append(tensor)
        return self.values.setdefault(id(tensor), Value(name, spec_of(tensor)))

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = Node(op, self.read(args), self.read(kwargs or {}))
        result = op(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else [result]
        position = len(self.graph.nodes)
        outputs = []
        for index, out in enumerate(results):
            if isinstance(out, torch.Tensor):
                value = self.value(out, f"t{position}_{index}")
                value.producer = value.producer or (
                    node if value not in self.graph.inputs else None
                )
                outputs.append(value)
            else:
                outputs.append(None)
        node.outputs = tuple(outputs)
        self.graph.nodes.append(node)
        return result

    def read(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            if id(arg) not in self.values:
                self.constants.append(arg)
                self.graph.inputs.append(self.value(arg, f"c{len(self.constants)}"))
            return self.values[id(arg)]
        if isinstance(arg, (tuple, list)):
            return type(arg)(self.read(item) for item in arg)
        if isinstance(arg, dict):
            return {key: self.read(item) for key, item in arg.items()}
        return arg


def record(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """The tape of `fn(*args)`, whose outputs are the Values of the tensors returned, and the
    constants that are its last inputs.
    """
    recorder = Recorder(args)
    with recorder:
        results = fn(*args)
    results = results if isinstance(results, (tuple, list)) else [results]
    recorder.graph.outputs = [recorder.values[id(out)] for out in results]
    return recorder.graph, recorder.constants


def evaluate(graph: Graph, args: Sequence[torch.Tensor], check_specs: bool = True) -> list[Any]:
    """Run a functional graph on real tensors, writes included; each result's Spec is checked."""
    found = dict(zip(graph.inputs, args, strict=True))
    for node in graph.nodes:
        result = node.op(
            *map_values(node.args, found.__getitem__), **map_values(node.kwargs, found.__getitem__)
        )
        results = result if isinstance(result, (tuple, list)) else [result]
        for value, out in zip(node.outputs, results, strict=True):
            if value is not None:
                found[value] = out
                if check_specs:
                    assert tuple(out.shape) == tuple(value.spec.shape), f"{node}: {out.shape}"
                    assert out.dtype == value.spec.dtype, f"{node}: {out.dtype}"
                    strides = [
                        (a, b)
                        for n, a, b in zip(out.shape, out.stride(), value.spec.stride, strict=True)
                        if n > 1
                    ]
                    assert out.numel() == 0 or all(a == b for a, b in strides), (
                        f"{node}: {out.stride()}"
                    )
    outputs = [found[out] if isinstance(out, Value) else out for out in graph.outputs]
    news = [(found[target], found[new]) for target, new in graph.writes]
    for target, new in news:
        target.copy_(new)
    return outputs
