"""Scatters: in the reference generator and in C++, in eager's order; and what they fuse with."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.triton.kernel import write_kernel
from flambeau_inductor.codegen.triton.tiling import choose_tiling
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.ir import scatters
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.pipeline import schedule_graph
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import spec_of
from flambeau_runtime import load


def exact(tester, build, *tensors):
    """In both generators, bit for bit: sums are in the order of the indices."""
    tester.check(build, *tensors, rtol=0, atol=0)
    graph = tester.graph(build, tensors)
    got = load(compile_graph(graph, tester.options))(*tensors)
    for mine, theirs in zip(got, run_graph(graph, list(tensors)), strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("accumulate", [True, False])
def test_places_named_several_times(tester, dtype, accumulate):
    def values(*shape):
        return (torch.randn(shape) * 9).to(dtype)

    def put(b, x, i, y):
        return b.index_put(x, [i], y, accumulate)

    for source in (values(300, 5), values(5, 300).t(), values(600, 5)[::2]):
        exact(tester, put, values(7, 5), torch.randint(-7, 7, (300,)), source)
    exact(tester, put, values(7), torch.randint(0, 7, (300,)), values(300))
    exact(tester, put, values(7, 5), torch.randint(0, 7, (0,)), values(0, 5))
    rows, columns = torch.randint(0, 7, (40, 3)), torch.randint(0, 6, (40, 3))

    def both(b, x, i, j, y):
        return b.index_put(x, [i, None, j], y, accumulate)

    exact(tester, both, values(7, 5, 6), rows, columns, values(40, 3, 5))


@pytest.mark.parametrize("mode", ["mul", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_reductions_into_places(tester, mode, dtype):
    def values(*shape):
        made = (torch.randn(shape) * 3).to(dtype)
        if dtype.is_floating_point and mode != "mul":
            made[torch.rand(shape) < 0.1] = float("nan")
        return made

    def reduce(b, x, i, y):
        return b.index_reduce(x, [i], b.add(y, y), mode)

    for source in (values(30, 5), values(5, 30).t(), values(60, 5)[::2]):
        tester.check(reduce, values(7, 5), torch.randint(-7, 7, (30,)), source, rtol=0, atol=0)
    tester.check(reduce, values(7, 5), torch.randint(0, 7, (0,)), values(0, 5), rtol=0, atol=0)

    def both(b, x, i, y):
        return b.index_reduce(b.index_put(x, [i], y, True), [i], y, mode)

    tester.check(both, values(7), torch.randint(0, 7, (30,)), values(30), rtol=1e-6, atol=0)


def test_work_before_and_behind(tester):
    """What is scattered is computed in the loop that scatters it."""

    def program(b, x, i, y):
        total = b.index_put(
            b.full((9, 5), 0.0, torch.float32, x.spec.device), [i], b.mul(y, y), True
        )
        return b.add(b.exp(total), x)

    tensors = (torch.randn(9, 5), torch.randint(0, 9, (40,)), torch.randn(40, 5))
    exact_enough = {"rtol": 1e-6, "atol": 1e-6}
    program_ = tester.check(program, *tensors, **exact_enough)
    assert len(program_.kernels) == 3


def test_an_index_out_of_bounds_raises(tester):
    graph = tester.graph(
        lambda b, x, i, y: b.index_put(x, [i], y, True),
        (torch.zeros(4), torch.zeros(2, dtype=torch.int64), torch.ones(2)),
    )
    run = load(compile_graph(graph, tester.options))
    with pytest.raises(IndexError):
        run(torch.zeros(4), torch.tensor([0, 4]), torch.ones(2))


def on_a_gpu(build, tensors):
    """The kernels of a graph on a GPU that is not there."""
    device = torch.device("cuda:0")
    from flambeau_prims.builder import Builder

    graph = Graph(
        [Value(f"x{i}", spec_of(t).replace(device=device)) for i, t in enumerate(tensors)]
    )
    builder = Builder(graph.nodes, [value.name for value in graph.inputs])
    graph.outputs = list(build(builder, *graph.inputs))
    options = InductorOptions()
    return [
        launch.kernel for launch in build_kernels(schedule_graph(graph, options), options).values()
    ]


def test_tables_share_kernels():
    """The gradients of several tables: one kernel of zeros, one of atomic sums."""

    def program(b, *values):
        results = []
        for index, grad in zip(values[::2], values[1::2], strict=True):
            zeros = b.full((10, 6), 0.0, torch.float32, grad.spec.device)
            inside = b.along(b.ne(index, 3), (0,), grad.spec.shape)
            results.append(b.index_put(zeros, [index], b.where(inside, grad, 0.0), True))
        return results

    tensors = [t for _ in range(4) for t in (torch.zeros(8, dtype=torch.int64), torch.zeros(8, 6))]
    fill, add = on_a_gpu(program, tensors)
    assert not scatters(fill.body) and scatters(add.body)
    text = write_kernel(add, "k", choose_tiling(add))
    assert text.count("tl.atomic_add") == 4 and 'sem="relaxed"' in text
    assert "tl.where(v" not in text.partition("atomic_add")[2].splitlines()[0]


def corners(b, index, *sources):
    """Sums of several sources in one buffer, as the corners of a sampled image give them."""
    total = b.full((10, 6), 0.0, torch.float32, index.spec.device)
    for number, source in enumerate(sources):
        total = b.index_put(total, [b.remainder(b.add(index, number), 10)], source, True)
    return (total,)


def test_a_chain_of_sums_has_one_buffer(tester):
    tensors = (torch.randint(0, 10, (40,)), *torch.randn(4, 40, 6))
    exact(tester, corners, *tensors)
    _, add = on_a_gpu(corners, tensors)
    assert write_kernel(add, "k", choose_tiling(add)).count("tl.atomic_add(b") == 4


def test_a_sum_that_is_used_twice_is_kept(tester):
    def program(b, index, source):
        (first,) = corners(b, index, source)
        return (b.index_put(first, [index], source, True), b.neg(first))

    exact(tester, program, torch.randint(0, 10, (40,)), torch.randn(40, 6))


def test_gpus_refuse_other_reductions_into_places():
    """No decomposition makes one there; a graph that holds one becomes no plain store."""

    def program(b, x, i, y):
        return [b.index_reduce(x, [i], y, "max")]

    tensors = (torch.randn(7, 5), torch.randint(0, 7, (3,)), torch.randn(3, 5))
    scatter = next(kernel for kernel in on_a_gpu(program, tensors) if scatters(kernel.body))
    with pytest.raises(NotImplementedError, match="Triton's atomics"):
        write_kernel(scatter, "k", choose_tiling(scatter))
