"""Kernels that share a launch: results, and which ones do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.base import Emitted
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime.peak_memory import planned_peak
from flambeau_runtime.program import (
    Allocate,
    Extern,
    Free,
    Kernel,
    Launch,
    Program,
    Source,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.ir import ScheduledKernel

aten = torch.ops.aten
OPTIONS = InductorOptions(debug_checks=True)


class Parts(ReferenceBackend):
    """Combines kernels as lists of their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[ScheduledKernel]] = {}

    def combine(self, scheduled: Sequence[ScheduledKernel], name: str) -> Emitted | None:
        self.parts.setdefault(name, list(scheduled))
        buffers = tuple(buffer for launch in scheduled for buffer in launch.buffers)
        source = Source("reference", "")
        return Emitted((source,), (Kernel(name, 0),), (Launch(name, buffers),))


def on_gpu(*shapes: tuple[int, ...]) -> tuple[Graph, Builder]:
    """A graph of inputs of these shapes, and a builder for it."""
    spec = [Spec.of(shape, device=torch.device("cuda:0")) for shape in shapes]
    graph = Graph([Value(f"x{number}", each) for number, each in enumerate(spec)])
    return graph, Builder(graph.nodes, [value.name for value in graph.inputs])


def launches(program: Program) -> list[str]:
    return [step.kernel for step in program.steps if isinstance(step, Launch)]


def product(graph: Graph, x: Value, w: Value) -> Value:
    """A call of a library."""
    spec = Spec.of((x.spec.shape[0], w.spec.shape[1]), device=x.spec.device)
    node = Node(aten.mm.default, (x, w), {})
    out = Value(f"product{len(graph.nodes)}", spec, node)
    node.outputs = (out,)
    graph.nodes.append(node)
    return out


def test_small_kernels_of_inputs_are_one_launch() -> None:
    graph, b = on_gpu((64, 64), (64, 32), (32, 16))
    x, w, v = graph.inputs
    y = product(graph, x, b.neg(w))
    graph.outputs = [product(graph, y, b.exp(v))]
    program = compile_graph(graph, OPTIONS)
    assert launches(program) == ["cuda_combined_0"]
    calls = [type(step) for step in program.steps if isinstance(step, (Launch, Extern))]
    assert calls == [Launch, Extern, Extern]
    apart = compile_graph(graph, InductorOptions(combine_kernels=False))
    assert len(launches(apart)) == 2


def test_what_would_raise_the_peak_is_computed_where_it_is_needed() -> None:
    """The largest product comes first; weights of later ones are not prepared before it."""
    graph, b = on_gpu((2048, 512), (512, 4096), (4096, 256), (256, 2048), (2048, 512))
    x, *weights = graph.inputs
    for weight in weights:
        x = product(graph, x, b.neg(weight))
    graph.outputs = [x]
    program = compile_graph(graph, OPTIONS)
    assert launches(program) == ["cuda_neg_0", "cuda_combined_0", "cuda_neg_1"]
    alone = compile_graph(graph, replace(OPTIONS, combine_kernels=False))
    assert planned_peak(program) <= planned_peak(alone) + (1 << 20)


def test_what_only_the_caller_reads_is_computed_in_one_launch_at_the_end() -> None:
    graph, b = on_gpu((64, 64), (64, 64), (64, 32), (32, 16))
    x, w, v, u = graph.inputs
    y = product(graph, x, w)
    first = b.exp(b.sum(y, (1,)))
    z = product(graph, y, v)
    second = b.sum(b.exp(z), (0,))
    graph.outputs = [first, second, product(graph, z, u)]
    program = compile_graph(graph, OPTIONS)
    assert launches(program) == ["cuda_combined_0"]
    assert [type(step) for step in program.steps if isinstance(step, (Extern, Launch))] == [
        Extern, Extern, Launch, Extern,
    ]  # fmt: skip


def test_kernels_that_need_each_other_are_launched_in_turn() -> None:
    graph, b = on_gpu((512, 300))
    (w,) = graph.inputs
    rows = b.sum(w, (1,))
    columns = b.sum(b.mul(w, b.expand(b.unsqueeze(rows, 1), (512, 300))), (0,))
    graph.outputs = [b.sum(b.exp(columns), (0,)), columns]
    program = compile_graph(graph, OPTIONS)
    assert len(launches(program)) >= 2
    assert not any("combined" in name for name in launches(program))


def test_large_kernels_and_symbolic_sizes_are_launched_alone() -> None:
    graph, b = on_gpu((1 << 23,), (1 << 23, 3))
    graph.outputs = [b.exp(graph.inputs[0]), b.neg(graph.inputs[1])]
    assert not any("combined" in name for name in launches(compile_graph(graph, OPTIONS)))


def test_written_inputs_are_written_alone() -> None:
    graph, b = on_gpu((70,), (90,))
    x, y = graph.inputs
    graph.writes = [(x, b.neg(x))]
    graph.outputs = [b.exp(y)]
    assert not any("combined" in name for name in launches(compile_graph(graph, OPTIONS)))


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    """Parts in any order give the same results, in the memory that the Program gives them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    shapes = [(24, 24), (24, 24), (7, 40), (7, 40), (130,), (130,)]
    graph, b = on_gpu(*shapes)
    values: list[Value] = list(graph.inputs)
    for _ in range(30):
        x = values[draw(len(values))]
        kind = draw(5)
        if kind == 0 and x.spec.shape == (24, 24):
            values.append(product(graph, x, values[draw(2)]))
        elif kind == 1 and x.spec.ndim == 2:
            values.append(b.tanh(b.permute(x, (1, 0))) if x.spec.shape == (24, 24) else b.exp(x))
        elif kind == 2 and x.spec.ndim == 2:
            row = b.unsqueeze(b.tanh(b.sum(x, (1,))), 1)
            values.append(b.add(x, b.expand(row, x.spec.shape)))
        else:
            values.append(b.tanh(x))
    graph.outputs = [values[draw(len(values) - 6) + 6] for _ in range(4)]
    tensors = [torch.randn(shape, generator=generator) / 4 for shape in shapes]
    backend = Parts()
    options = InductorOptions(debug_checks=True, fuse_horizontal=False)
    program = compile_graph(graph, options, backends={"cuda": backend})
    found = execute(program, tensors, backend)
    expected = run_graph(graph, tensors)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    if seed == 0:
        assert backend.parts


def execute(program: Program, tensors: list[torch.Tensor], backend: Parts) -> list[torch.Tensor]:
    """The results on a CPU, the last part of a launch first; freed memory is overwritten."""
    declared = {tensor.name: tensor for tensor in program.tensors}
    values = dict(zip(program.inputs, tensors, strict=True))
    for step in program.steps:
        if isinstance(step, Allocate):
            tensor = declared[step.name]
            fresh = torch.empty_strided(tensor.shape, tensor.stride)
            if step.reuse:
                fresh = torch.as_strided(values[step.reuse], tensor.shape, tensor.stride)
            values[step.name] = fresh
        elif isinstance(step, Free):
            values[step.name].fill_(float("nan"))
        elif isinstance(step, View):
            tensor = declared[step.name]
            values[step.name] = torch.as_strided(values[step.base], tensor.shape, tensor.stride)
        elif isinstance(step, Extern):
            torch.mm(*(values[ref.name] for ref in step.args), out=values[step.out[0][1]])
        elif step.kernel in backend.parts:
            buffers = list(step.buffers)
            for part in reversed(backend.parts[step.kernel]):
                count = len(part.buffers)
                names, buffers = buffers[-count:], buffers[:-count]
                run_kernel(part.kernel, [values[name] for name in names], ())
        else:
            run_kernel(backend.kernels[step.kernel], [values[n] for n in step.buffers], step.ints)
    return [values[name] for name in program.outputs]


def test_a_kernel_that_checks_indices_does_not_keep_others_apart() -> None:
    graph, b = on_gpu((64, 64), (64, 32), (32, 16), (50, 8))
    places = Value("places", Spec.of((9,), dtype=torch.int64, device=torch.device("cuda:0")))
    graph.inputs.append(places)
    x, w, v, table = graph.inputs[:4]
    taken = b.index(table, [places])
    y = product(graph, x, b.neg(w))
    graph.outputs = [product(graph, y, b.exp(v)), taken, b.exp(table)]
    names = launches(compile_graph(graph, OPTIONS))
    assert sum("combined" in name for name in names) == 1 and len(names) == 2
