"""run_graph: execute a graph in eager PyTorch, primitive by primitive.

The reference for everything that compiles graphs: fresh results are laid out as their Spec says, so
a graph's outputs have exactly the strides they were promised with.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.size_floats import evaluate_number
from flambeau_prims.symbols import symbol_reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

_NEEDS_GRAD_MODE = {torch.ops.aten.mkldnn_rnn_layer.default}
"""Operators that omit the backward's data (oneDNN's workspace) while grad mode is off."""


def run_graph(
    graph: Graph, inputs: Sequence[Tensor | int], *, lay_out: bool = True
) -> tuple[Any, ...]:
    """The graph's outputs on these inputs (an int for an Expr); inputs are written to.

    `lay_out=False`: results keep the strides that eager operators give them. `torch.vmap` needs
    that. Autocast is off: a graph spells its casts out.
    """
    symbols = {name: read.value(inputs) for name, read in symbol_reads(graph.inputs).items()}
    known: dict[Value, Any] = {
        value: given
        for value, given in zip(graph.inputs, inputs, strict=True)
        if isinstance(value, Value)
    }
    with torch._C._DisableAutocast():
        for node in graph.nodes:
            results = _run_node(node, known, symbols, lay_out)
            for value, result in zip(node.outputs, results, strict=True):
                if value is not None:
                    known[value] = result
    outputs = tuple(
        known[out] if isinstance(out, Value) else evaluate_number(out, symbols)
        for out in graph.outputs
    )
    write_inputs(graph, known)
    return outputs


def write_inputs(graph: Graph, known: Mapping[Any, Any]) -> None:
    """Write what the graph writes to its inputs at exit, and move their version counters."""
    for target, value in graph.writes:
        with _version_kept(known[target]):
            known[target].copy_(known[value])
    for target, count in graph.counted_writes():
        for _ in range(0 if known[target].is_inference() else count):
            torch.autograd.graph.increment_version(known[target])


def _version_kept(tensor: Tensor) -> AbstractContextManager[Any]:
    if tensor.is_inference():
        return nullcontext()
    return torch.autograd._unsafe_preserve_version_counter(tensor)


def _run_node(
    node: Node, known: Mapping[Value, Tensor], symbols: Mapping[str, int], lay_out: bool
) -> tuple[Any, ...]:
    args = _concrete(node.args, known, symbols)
    kwargs = _concrete(node.kwargs, known, symbols)
    with torch.enable_grad() if node.op in _NEEDS_GRAD_MODE else nullcontext():
        result = node.op(*args, **kwargs)
    if isinstance(node.op, Prim):
        (out,) = node.outputs
        assert out is not None
        if node.op.kind is Kind.VIEW or not lay_out:
            return (result,)
        return (_laid_out(result, out, symbols),)
    if isinstance(result, (tuple, list)):
        return tuple(_flat(result))
    return (result,) * bool(node.outputs)


def _flat(results: Any) -> list[Any]:
    flat: list[Any] = []
    for item in results:
        flat.extend(_flat(item) if isinstance(item, (tuple, list)) else [item])
    return flat


def _laid_out(result: Tensor, value: Value, symbols: Mapping[str, int]) -> Tensor:
    """A fresh result in the strides of its Value, in separate memory."""
    stride = [evaluate_number(step, symbols) for step in value.spec.stride]
    laid = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    with _version_kept(laid):
        return laid.copy_(result)


def _concrete(arg: Any, known: Mapping[Value, Tensor], symbols: Mapping[str, int]) -> Any:
    if isinstance(arg, Value):
        return known[arg]
    if isinstance(arg, (tuple, list)):
        return type(arg)(_concrete(item, known, symbols) for item in arg)
    if isinstance(arg, dict):
        return {key: _concrete(item, known, symbols) for key, item in arg.items()}
    return evaluate_number(arg, symbols)
