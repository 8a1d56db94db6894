"""A functional graph as a torch.export.ExportedProgram, which engines take.

    graph(x: f32[s0, 8], n: s1) -> y      by sizes    program(x: f32[4, 8]) -> y, n as it is in
                                                      this call
                                          symbolic    program(x: f32[s0, 8]) -> y for a range of s0

The program takes the tensors of the graph's inputs, and returns the tensors that the graph returns
or writes, each once. torch.export's own tracer runs the graph to make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.exported.interop_torch import dims_of
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.size_floats import evaluate_number
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Exported:
    """A program, the same run by eager, example inputs, and the sizes that it serves: (symbol,
    least, greatest).
    """

    program: torch.export.ExportedProgram
    eager: Callable[..., tuple[torch.Tensor, ...]]
    examples: tuple[torch.Tensor, ...]
    ranges: tuple[tuple[str, int, int | None], ...] = ()


def export_with_sizes(graph: Graph, symbols: Mapping[str, Any]) -> Exported:
    """The program of a graph for these values of its symbols."""
    import torch.export

    numbers = [
        None if isinstance(given, Value) else evaluate_number(given, symbols)
        for given in graph.inputs
    ]
    examples = _examples(graph, symbols)
    module = _GraphModule(graph, numbers)
    return Exported(torch.export.export(module, examples, strict=False), module, examples)


def export_for_all_sizes(graph: Graph, symbols: Mapping[str, int]) -> Exported | None:
    """The program of a graph for a range of sizes that these are in; None where an input is a
    number, or torch.export makes assumptions about sizes.
    """
    import torch.export

    assert graph.env is not None
    values = [value for value in graph.inputs if isinstance(value, Value)]
    if len(values) < len(graph.inputs) or any(size < 2 for size in symbols.values()):
        return None
    bounds = {name: graph.env.ranges.bounds(graph.env.bare_symbol(name)) for name in symbols}
    ranges = {name: (max(least or 2, 2), most) for name, (least, most) in bounds.items()}
    dims = {
        name: torch.export.Dim(name, min=least, max=most) for name, (least, most) in ranges.items()
    }
    module, examples = _GraphModule(graph, [None] * len(values)), _examples(graph, symbols)
    shapes = tuple(dims_of(value.spec, dims) for value in values)
    try:
        program = torch.export.export(module, examples, dynamic_shapes=(shapes,), strict=False)
    except (torch._dynamo.exc.UserError, ValueError, RuntimeError):  # sizes are related or fixed
        return None
    return Exported(
        program,
        module,
        examples,
        tuple((name, least, most) for name, (least, most) in ranges.items()),
    )


class _GraphModule(torch.nn.Module):
    """A graph as a module of its tensors; `numbers` are its other inputs."""

    def __init__(self, graph: Graph, numbers: Sequence[Any]) -> None:
        super().__init__()
        self._graph = graph
        self._numbers = numbers

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        given = iter(tensors)
        inputs = [
            next(given) if isinstance(item, Value) else number
            for item, number in zip(self._graph.inputs, self._numbers, strict=True)
        ]
        return run_graph(self._graph, inputs)


def _examples(graph: Graph, symbols: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Zeros, contiguous, in the sizes of the graph's tensors."""
    return tuple(
        torch.zeros(
            [evaluate_number(size, symbols) for size in value.spec.shape],
            dtype=value.spec.dtype,
            device=value.spec.device,
        )
        for value in graph.inputs
        if isinstance(value, Value)
    )


def is_symbolic(graph: Graph) -> bool:
    """Whether a tensor of the graph's inputs has a symbolic size."""
    return any(
        isinstance(size, Expr)
        for value in graph.inputs
        if isinstance(value, Value)
        for size in value.spec.shape
    )
