"""Products that leave the program as float32: which are widened, which stay."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.widen_gradients import widen_gradients
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime.program import Extern, Launch

MM = torch.ops.aten.mm.default


def product(
    device: str = "cuda", dtype: torch.dtype = torch.bfloat16
) -> tuple[Graph, Builder, Value]:
    """mm(x, w)."""
    x, w, y = (
        Value(name, Spec.of(shape, dtype=dtype, device=torch.device(device)))
        for name, shape in zip("xwy", ((6, 4), (4, 8), (6, 8)), strict=True)
    )
    y.producer = Node(MM, (x, w), {}, (y,))
    graph = Graph([x, w], [y.producer])
    return graph, Builder(graph.nodes, "xwy"), y


def names(graph: Graph) -> list[str]:
    return [str(getattr(node.op, "name", node.op)) for node in graph.nodes]


def test_a_result_that_leaves_the_program_is_wide() -> None:
    graph, b, y = product()
    twice = b.permute(b.permute(y, (1, 0)), (1, 0))
    graph.outputs = [b.cast(twice, torch.float32)]
    check_graph(widen_gradients(graph))
    (node,) = graph.nodes
    assert node.op is torch.ops.aten.mm.dtype and node.args[2] is torch.float32
    program = compile_graph(graph, InductorOptions(debug_checks=True))
    (call,) = [step for step in program.steps if isinstance(step, Extern)]
    assert call.op == "aten.mm.dtype_out"
    assert not any(isinstance(step, Launch) for step in program.steps)


def test_what_kernels_or_others_read_stays() -> None:
    for read in (
        lambda b, y: [b.exp(b.cast(y, torch.float32))],
        lambda b, y: [b.cast(y, torch.float32), y],
        lambda b, y: [b.cast(y, torch.float32), b.permute(y, (1, 0))],
        lambda b, y: [b.cast(y, torch.float64)],
        lambda b, y: [b.cast(b.permute(y, (1, 0)), torch.float32)],
        lambda b, y: [z := b.cast(y, torch.float32), b.exp(z)],
    ):
        graph, b, y = product()
        graph.outputs = read(b, y)
        before = names(graph)
        assert names(widen_gradients(graph)) == before


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_other_products_stay(device: str, dtype: torch.dtype) -> None:
    graph, b, y = product(device, dtype)
    graph.outputs = [b.cast(y, torch.float32 if dtype is torch.bfloat16 else torch.float64)]
    assert MM in [node.op for node in widen_gradients(graph).nodes]
