"""The pass that replaces a sum of one chosen element: what it recognises, and what it leaves."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.one_hot_sums import collapse_one_hot_sums
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.primitives import PRIMS
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import load

ROWS, CLASSES = 6, 9


def graph_of(build, shape=(ROWS, CLASSES), dim=1, dtype=torch.float32) -> Graph:
    """(values, targets, flags), one for each row of the shape, to what `build` makes of them."""
    rows = (*shape[:dim], *shape[dim + 1 :])
    dtypes = {"v": dtype, "t": torch.int64, "c": torch.bool}
    inputs = [Value(name, Spec.of(rows, dtype=kind)) for name, kind in dtypes.items()]
    graph = Graph(inputs)
    b = Builder(graph.nodes, dtypes)
    spread = [b.spread(value, (dim,), shape) for value in inputs]
    numbers = b.iota(shape[dim], 0, 1, torch.int64, torch.device("cpu"))
    graph.outputs = [build(b, b.along(numbers, (dim,), shape), *spread, dim)]
    return graph


def chosen(b, places, v, t, c, dim):
    return b.sum(b.where(b.bitwise_and(b.eq(places, t), c), v, 0.0), (dim,))


def cast_after(b, places, v, t, c, dim):
    hit = b.where(b.bitwise_and(c, b.eq(t, places)), v, 0)
    return b.sum(b.cast(b.cast(hit, torch.bfloat16), torch.float32), (dim,))


def has_sum(graph: Graph) -> bool:
    return any(node.op is PRIMS["sum"] for node in graph.nodes)


def inputs(shape) -> list[torch.Tensor]:
    count = torch.Size(shape).numel()
    values = torch.randn(count)
    values[:5] = torch.tensor([float("nan"), float("inf"), -0.0, float("-inf"), 1.0])
    targets = torch.arange(count) % CLASSES
    targets[4:7] = torch.tensor([-1, CLASSES, 2**40])[: len(targets[4:7])]
    flags = torch.arange(count) % 4 != 3
    return [x.reshape(shape) for x in (values, targets, flags)]


@pytest.mark.parametrize("build", [chosen, cast_after])
@pytest.mark.parametrize(
    ("shape", "dim"), [((ROWS, CLASSES), 1), ((CLASSES, ROWS), 0), ((3, CLASSES, 4, 2), 1)]
)
def test_a_sum_of_one_element_is_the_element(build, shape, dim) -> None:
    rows = (*shape[:dim], *shape[dim + 1 :])
    given = inputs(rows)
    graph = graph_of(build, shape, dim)
    (before,) = run_graph(graph, given)
    check_graph(collapse_one_hot_sums(graph))
    assert not has_sum(graph)
    (after,) = run_graph(graph, given)
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(after), torch.signbit(before))
    (compiled,) = load(compile_graph(graph_of(build, shape, dim)))(*given)
    # A kernel leaves out the rounding to bfloat16.
    tolerance = 1e-2 if build is cast_after else 0.0
    torch.testing.assert_close(compiled, before, rtol=tolerance, atol=0, equal_nan=True)


def test_symbolic_sizes() -> None:
    env = SizeEnv()
    n, k = env.symbol(ROWS, "n"), env.symbol(CLASSES, "k")
    graph = graph_of(chosen, (n, k))
    graph.inputs.append(k)
    graph.env = env
    assert not has_sum(collapse_one_hot_sums(graph))


LEFT = {
    "another filler": lambda b, places, v, t, c, dim: b.sum(
        b.where(b.eq(places, t), v, 1.0), (dim,)
    ),
    "a product": lambda b, places, v, t, c, dim: b.sum(
        b.mul(b.cast(b.eq(places, t), torch.float32), v), (dim,)
    ),
    "values that vary": lambda b, places, v, t, c, dim: b.sum(
        b.where(b.eq(places, t), b.add(v, b.cast(places, torch.float32)), 0.0), (dim,)
    ),
    "conditions that vary": lambda b, places, v, t, c, dim: b.sum(
        b.where(b.bitwise_and(b.eq(places, t), b.lt(places, 3)), v, 0.0), (dim,)
    ),
    "no place": lambda b, places, v, t, c, dim: b.sum(b.where(c, v, 0.0), (dim,)),
    "several places": lambda b, places, v, t, c, dim: b.sum(
        b.where(b.bitwise_or(b.eq(places, t), c), v, 0.0), (dim,)
    ),
    "all dims": lambda b, places, v, t, c, dim: b.sum(b.where(b.eq(places, t), v, 0.0), (0, 1)),
    "other numbers": lambda b, places, v, t, c, dim: b.sum(
        b.where(b.eq(b.floor_divide(places, 2), t), v, 0.0), (dim,)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_sums_stay(name) -> None:
    graph = graph_of(LEFT[name])
    assert has_sum(collapse_one_hot_sums(graph))
