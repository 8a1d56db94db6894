"""Reductions that a GPU shares out to programs: results, and what a program reads."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_inductor.codegen.triton.tiling import choose_tiling, row_axes
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.indexing.expressions import evaluate_expr
from flambeau_inductor.ir import Load, LoopKernel
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.split_reduction import choose_split
from flambeau_prims.builder import Builder
from flambeau_prims.decompositions.reduction import variance
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec
from flambeau_runtime.program import Allocate, Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OPTIONS = InductorOptions(debug_checks=True)
SECTOR = 32
"""Bytes that a GPU's memory moves at once."""


def images(*shape: int) -> torch.Tensor:
    """A random channels-last tensor."""
    return torch.randn(shape).to(memory_format=torch.channels_last)


def graph_of(x: torch.Tensor, build: Callable[[Builder, Value], Sequence[Value]]) -> Graph:
    """The graph of a function of one tensor like `x` on a GPU."""
    spec = Spec.of(tuple(x.shape), stride=x.stride(), dtype=x.dtype, device=torch.device("cuda:0"))
    graph = Graph([Value("x", spec)])
    graph.outputs = list(build(Builder(graph.nodes, ["x"]), graph.inputs[0]))  # type: ignore[arg-type]
    return graph


def run(graph: Graph, x: torch.Tensor) -> tuple[list[torch.Tensor], list[LoopKernel]]:
    """The results on a CPU, and the kernels in order."""
    backend = ReferenceBackend()
    program = compile_graph(graph, OPTIONS, backends={"cuda": backend})
    declared = {tensor.name: tensor for tensor in program.tensors}
    values = {program.inputs[0]: x}
    kernels = []
    for step in program.steps:
        if isinstance(step, Allocate):
            tensor = declared[step.name]
            dtype = getattr(torch, tensor.dtype)
            values[step.name] = torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype)
        elif isinstance(step, Launch):
            kernels.append(backend.kernels[step.kernel])
            run_kernel(kernels[-1], [values[name] for name in step.buffers], step.ints)
    return [values[name] for name in program.outputs], kernels


def moments(group: int) -> Callable[[Builder, Value], Sequence[Value]]:
    """Mean and variance of each group of channels, as a group norm takes them."""

    def build(b: Builder, x: Value) -> Sequence[Value]:
        n, channels, *space = x.spec.shape
        wide = b.reshape(b.widen(x), (n, group, channels // group, *space))
        return variance(b, wide, tuple(range(2, wide.spec.ndim)), 0)

    return build


@pytest.mark.parametrize(
    ("shape", "group", "kernels"),
    [
        ((2, 8, 64, 80), 2, 2),  # runs of 16 bytes: sums of channels first
        ((3, 10, 67, 71), 5, 2),  # rows that no number of programs divides
        ((2, 64, 80, 32), 2, 2),  # runs of whole lines
        ((2, 12, 16, 16), 3, 1),  # rows that a program keeps
    ],
)
def test_moments_of_groups_of_channels(shape: tuple[int, ...], group: int, kernels: int) -> None:
    x = images(*shape) + 3
    (spread, average), built = run(graph_of(x, moments(group)), x)
    rows = x.double().reshape(shape[0], group, -1)
    torch.testing.assert_close(average.double(), rows.mean(2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(spread.double(), rows.var(2, correction=0), atol=1e-5, rtol=1e-5)
    assert len(built) == kernels


@pytest.mark.parametrize("name", ["sum", "amax", "prod"])
@pytest.mark.parametrize(
    ("shape", "dims"), [((6, 8, 33, 35), (0, 2, 3)), ((40, 3, 50, 7), (0, 2, 3))]
)
def test_columns_over_several_dims(
    name: str, shape: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    x = images(*shape) / (1 if name != "prod" else 100) + (name == "prod")
    graph = graph_of(x, lambda b, v: [getattr(b, name)(v, dims)])
    (result,), _ = run(graph, x)
    expected = x.double()
    for d in sorted(dims, reverse=True):
        expected = getattr(expected, name)(d)
    torch.testing.assert_close(result.double(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0, 5), (7, 0), (0, 0, 2), (300, 0, 300)])
def test_sums_of_nothing(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    for dims in ((0,), (1,), tuple(range(x.ndim))):
        (result,), _ = run(graph_of(x, lambda b, v, dims=dims: [b.sum(v, dims)]), x)
        assert torch.equal(result, x.sum(dims))


def test_statistics_of_few_channels_keep_a_gpu_busy() -> None:
    """A dim of 64 images is not enough: rows of pixels are shared out too."""
    spec = Spec.of((64, 64, 56, 56), stride=(200704, 1, 3584, 64), device=torch.device("cuda"))
    node = Builder([], ["x"]).sum(Value("x", spec), (0, 2, 3)).producer
    split = choose_split(node, (0, 2, 3), InductorOptions())
    assert split.outer == (0,) and split.count(spec) >= 256


def sectors(kernel: LoopKernel, itemsize: int) -> float:
    """How many times the bytes that it uses the first program reads of the largest buffer, at once:
    in its first step.
    """
    tiling = choose_tiling(kernel)
    outer, inner = (
        islice(product(*(range(int(axis.size)) for axis in axes)), count)
        for axes, count in (
            (row_axes(kernel, tiling), tiling.xblock),
            (kernel.inner, tiling.rblock),
        )
    )
    load = next(s for s in kernel.body if isinstance(s, Load) and s.buffer == "b0")
    names = [axis.symbol.name for axis in (*row_axes(kernel, tiling), *kernel.inner)]
    fixed = {axis.symbol.name: 0 for axis in kernel.outer}
    places = {
        int(evaluate_expr(load.index, fixed | dict(zip(names, (*i, *r), strict=True))))
        for i, r in product(list(outer), list(inner))
    }
    read = {place * itemsize // SECTOR for place in places}
    return len(read) * SECTOR / (len(places) * itemsize)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(16, 64, 64, 64), (16, 128, 64, 64), (2, 64, 64, 64), (16, 256, 32, 32)]
)
def test_programs_read_whole_sectors_of_channels_last_images(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    stride = torch.empty(shape, device="meta").to(memory_format=torch.channels_last).stride()
    x = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    schedule = schedule_graph(graph_of(x, moments(16)), OPTIONS)
    first = next(iter(build_kernels(schedule, OPTIONS).values())).kernel
    assert sectors(first, dtype.itemsize) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(("shape", "dims"), [((0, 3), (0, 1)), ((2, 0, 3), (0, 1)), ((3, 0), (0,))])
def test_empty_tensors_are_not_shared_out(
    shape: tuple[int, ...], dims: tuple[int, ...], device: str
) -> None:
    spec = Spec.of(shape, dtype=torch.float32, device=torch.device(device))
    graph = Graph([Value("x", spec)])
    Builder(graph.nodes, ["x"]).sum(graph.inputs[0], dims)
    assert not choose_split(graph.nodes[-1], dims, InductorOptions(threads=2)).splits
