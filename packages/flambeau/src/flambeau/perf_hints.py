"""The log topic `perf_hints`: why a graph is slower than it might be.

aten.special_airy_ai.default is not fused: special function without a kernel (model.py:12)
cpu_clone_3 only copies 4,096 bytes to another layout (model.py:14)
not fused: sum (model.py:12) with add (model.py:13): their axes differ
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from flambeau.program_explanation import explain_program
from flambeau_prims.decompositions.extern import reason_for
from flambeau_prims.lazy_exports import import_apart
from flambeau_prims.primitives import DTYPES
from flambeau_runtime.externs import refs_of
from flambeau_runtime.program import Extern, Launch

if TYPE_CHECKING:
    from flambeau_inductor import InductorOptions
    from flambeau_prims.graph import Graph
    from flambeau_runtime.program import Program

_COPIES = frozenset({"clone", "reshape", "permute", "expand", "unsqueeze", "squeeze", "slice"})
"""Kernels that compute nothing else only copy."""


def perf_hints(graph: Graph, program: Program, options: InductorOptions) -> list[str]:
    """The hints about one functional graph: calls that no kernel computes, kernels that only copy,
    refused fusions.
    """
    hints = [*_calls(program), *_copies(graph, program)]
    refusals = import_apart("flambeau_inductor.compile").explain_graph(graph, options).refusals
    counts = Counter(f"not fused: {r.first} with {r.second}: {r.reason}" for r in refusals)
    return hints + [_times(text, count) for text, count in counts.items()]


def _calls(program: Program) -> list[str]:
    texts = Counter(
        f"{step.op} is not fused: {extern_reason(step, program)}{_places(step)}"
        for step in program.steps
        if isinstance(step, Extern)
    )
    return [_times(text, count) for text, count in texts.items()]


def _copies(graph: Graph, program: Program) -> list[str]:
    names = {
        out.name: str(getattr(node.op, "name", node.op))
        for node in graph.nodes
        for out in node.outputs
        if out is not None
    }
    touched = {
        kernel.name: kernel.bytes_touched for kernel in explain_program(program, graph).kernels
    }
    texts = Counter(
        f"{step.kernel} only copies: it reads and writes {touched[step.kernel]:,} bytes to change "
        f"a layout{_places(step)}"
        for step in program.steps
        if isinstance(step, Launch)
        and step.computes
        and _COPIES.issuperset(names[name] for name in step.computes if name in names)
    )
    return [_times(text, count) for text, count in texts.items()]


def extern_reason(step: Extern, program: Program) -> str:
    """Why a call of ATen is not part of a kernel."""
    namespace, operator, overload = step.op.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    if (reason := reason_for(op)) is not None:
        return reason
    names = {*refs_of(step.args), *refs_of(step.kwargs), *step.outputs, *dict(step.out).values()}
    tensors = [tensor for tensor in program.tensors if tensor.name in names]
    unknown = {tensor.dtype for tensor in tensors} - {str(dtype)[6:] for dtype in DTYPES}
    if unknown:
        return f"kernels do not compute in {', '.join(sorted(unknown))}"
    if len({tensor.device for tensor in tensors}) > 1:
        return "copies between devices"
    return "its decomposition does not cover these arguments"


def _places(step: Any) -> str:
    return f" ({', '.join(step.lines)})" if step.lines else ""


def _times(text: str, count: int) -> str:
    return text if count == 1 else f"{text}, {count} times"
