"""The pass that scatters into a sum's other summand: what it rewrites, and what it leaves."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.scatter_into_sum import scatter_into_sums
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.primitives import PRIMS
from flambeau_prims.spec import Spec
from flambeau_runtime import load

ROWS, WIDTH, WORDS = 11, 5, 7


def scattered(b, index, source, value=0.0, accumulate=True, rows=ROWS):
    zeros = b.full((rows, WIDTH), value, source.spec.dtype, torch.device("cpu"))
    return b.index_put(zeros, (index,), source, accumulate)


def one(b, y, i, v):
    return [b.add(y, scattered(b, i, v))]


def left(b, y, i, v):
    return [b.mul(b.add(scattered(b, i, v), b.exp(y)), 2.0)]


def two(b, y, i, v):
    return [b.add(b.add(scattered(b, i, v), scattered(b, i, b.sin(v))), y)]


def of_the_input_twice(b, y, i, v):
    return [b.add(y, scattered(b, i, v)), b.sin(y)]


def into_ones(b, y, i, v):
    return [b.add(y, scattered(b, i, v, 1.0))]


def replaced(b, y, i, v):
    return [b.add(y, scattered(b, b.iota(WORDS, 0, 1, torch.int64, torch.device("cpu")), v,
                               accumulate=False))]  # fmt: skip


def kept(b, y, i, v):
    g = scattered(b, i, v)
    return [b.add(y, g), g]


def doubled(b, y, i, v):
    g = scattered(b, i, v)
    return [b.add(g, g), b.sin(y)]


def a_number(b, y, i, v):
    return [b.add(scattered(b, i, v), 1.0), b.sin(y)]


REWRITTEN = {one: 0, left: 0, two: 1, of_the_input_twice: 0}
"""How many of the zeros stay: one summand of two scattered ones is still made of zeros."""
LEFT = (into_ones, replaced, kept, doubled, a_number)


def graph_of(build, dtype=torch.float32) -> Graph:
    specs = {
        "y": Spec.of((ROWS, WIDTH), dtype=dtype),
        "i": Spec.of((WORDS,), dtype=torch.int64),
        "v": Spec.of((WORDS, WIDTH), dtype=dtype),
    }
    inputs = [Value(name, spec) for name, spec in specs.items()]
    graph = Graph(inputs)
    graph.outputs = build(Builder(graph.nodes, specs), *inputs)
    return graph


def inputs(dtype=torch.float32) -> list[torch.Tensor]:
    def numbers(*shape):
        return (torch.randn(shape) * 4).to(dtype)

    return [numbers(ROWS, WIDTH), torch.randint(-ROWS, ROWS, (WORDS,)), numbers(WORDS, WIDTH)]


def count_read_zeros(graph: Graph) -> int:
    return sum(
        node.op is PRIMS["full"] and bool(users)
        for value, users in graph.users().items()
        if (node := value.producer) is not None
    )


@pytest.mark.parametrize("build", REWRITTEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_rewritten(build, dtype):
    if dtype is torch.int64 and build in (left, two, of_the_input_twice):
        pytest.skip("these compute functions of floats")
    graph = graph_of(build, dtype)
    given = inputs(dtype)
    want = run_graph(graph, given)
    scatter_into_sums(graph)
    check_graph(graph)
    assert count_read_zeros(graph) == REWRITTEN[build]
    torch.testing.assert_close(run_graph(graph, given), want)
    before = [each.clone() for each in given]
    torch.testing.assert_close(load(compile_graph(graph_of(build, dtype)))(*given), want)
    torch.testing.assert_close(given, before, rtol=0, atol=0)


@pytest.mark.parametrize("build", LEFT)
def test_left(build):
    graph = graph_of(build)
    text = str(graph)
    scatter_into_sums(graph)
    assert str(graph) == text
    given = inputs()
    want = run_graph(graph, given)
    torch.testing.assert_close(load(compile_graph(graph))(*given), want)


def test_strict_numerics_add_as_eager():
    given = inputs()
    given[1] = torch.zeros(WORDS, dtype=torch.int64)
    (want,) = run_graph(graph_of(one), given)
    strict = InductorOptions(numerics="strict")
    (found,) = load(compile_graph(graph_of(one), strict))(*given)
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_bad_indices_raise_and_write_nothing():
    given = inputs()
    given[1][3] = ROWS
    run = load(compile_graph(graph_of(one)))
    with pytest.raises(IndexError):
        run(*given)
