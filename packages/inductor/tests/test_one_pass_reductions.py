"""The pass that reduces long rows in one pass: what it recognises, and what it must leave."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import compile_graph, explain_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.one_pass_reductions import reduce_in_one_pass
from flambeau_prims.builder import Builder
from flambeau_prims.decompositions.reduction import logsumexp, mean, variance
from flambeau_prims.decompositions.softmax import log_softmax, softmax
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.primitives import Prim
from flambeau_prims.spec import Spec

LONG, SHORT = 70_000, 1000


def graph_of(build, shape, device="cpu", stride=None) -> Graph:
    spec = Spec.of(shape, stride=stride, device=torch.device(device))
    x = Value("x", spec)
    graph = Graph([x])
    builder = Builder(graph.nodes, ["x"])
    builder.results = (spec,)
    result = build(builder, x)
    graph.outputs = list(result) if isinstance(result, tuple) else [result]
    return graph


def reductions(graph: Graph) -> list[str]:
    names = [node.op.name for node in graph.nodes if isinstance(node.op, Prim)]
    kinds = ("sum", "amax", "sum_exp", "mean", "squared_deviations")
    return [name for name in names if name in kinds]


def deviation_from(b, x, dims, middle):
    far = b.sub(x, b.spread(middle, dims, x.spec.shape))
    return b.sum(b.mul(far, far), dims)


RECOGNISED = {
    "softmax": (lambda b, x: softmax(b, x, 1, False), ["amax", "sum_exp"]),
    "log_softmax": (lambda b, x: log_softmax(b, x, 1, False), ["amax", "sum_exp"]),
    "logsumexp": (lambda b, x: logsumexp(b, x, [1]), ["amax", "sum_exp"]),
    "variance": (lambda b, x: variance(b, x, (1,), 1), ["mean", "squared_deviations"]),
    "corrected variance": (
        lambda b, x: variance(b, x, (1,), 1, of_mean=True),
        ["mean", "squared_deviations"],
    ),
    "both dims": (lambda b, x: variance(b, x, (0, 1), 0), ["mean", "squared_deviations"]),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_long_rows_are_reduced_in_one_pass(name) -> None:
    build, expected = RECOGNISED[name]
    x = torch.randn(3, LONG)
    x[1, 5] = float("inf")
    x[2] = float("-inf")
    graph = graph_of(build, x.shape)
    before = run_graph(graph, [x])
    check_graph(reduce_in_one_pass(graph))
    assert reductions(graph) == expected
    for ours, theirs in zip(run_graph(graph, [x]), before, strict=True):
        if "mean" in expected:  # of rows with an infinity
            ours, theirs = (each.where(each.isfinite(), float("nan")) for each in (ours, theirs))
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("name", RECOGNISED)
def test_short_rows_keep_two_passes(name) -> None:
    graph = graph_of(RECOGNISED[name][0], (3, SHORT))
    assert not {"sum_exp", "squared_deviations"} & set(reductions(reduce_in_one_pass(graph)))


def test_another_correction_stays() -> None:
    """What squares and a mean are corrected by, if it is not what the mean's rounding leaves."""

    def build(b, x):
        middle, near = mean(b, x, (1,)), b.amax(x, (1,))
        squares = deviation_from(b, x, (1,), middle)
        rest = b.sum(b.sub(x, b.spread(near, (1,), x.spec.shape)), (1,))
        shift, is_far = b.div(rest, float(LONG)), b.gt(middle, 0.0)
        corrected = b.maximum(b.sub(squares, b.mul(rest, shift)), 0.0)
        return b.where(is_far, corrected, squares), b.where(is_far, b.add(middle, shift), middle)

    graph = graph_of(build, (3, LONG))
    x = torch.randn(3, LONG)
    before = run_graph(graph, [x])
    assert reductions(reduce_in_one_pass(graph)) == ["sum", "amax", "squared_deviations", "sum"]
    for ours, theirs in zip(run_graph(graph, [x]), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2)


LEFT = {
    "another middle": lambda b, x: deviation_from(b, x, (1,), b.amax(x, (1,))),
    "the mean of the neighbours": lambda b, x: deviation_from(
        b, x, (1,), b.mul(b.sum(x, (1,)), 1 / (LONG + 1))
    ),
    "the mean of another tensor": lambda b, x: deviation_from(b, x, (1,), mean(b, b.neg(x), (1,))),
    "the mean of all": lambda b, x: deviation_from(
        b, x, (1,), b.expand(mean(b, x, (0, 1)), (x.spec.shape[0],))
    ),
    "a row's maximum for another": lambda b, x: b.sum(
        b.exp(b.sub(x, b.spread(b.flip(b.amax(x, (1,)), (0,)), (1,), x.spec.shape))), (1,)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_sums_stay(name) -> None:
    graph = graph_of(LEFT[name], (3, LONG))
    before = reductions(graph)
    assert reductions(reduce_in_one_pass(graph)) == before


def test_a_square_matrix_of_wrongly_spread_means_stays() -> None:
    def build(b, x):
        return b.sum(b.exp(b.sub(x, b.expand(b.amax(x, (1,)), x.spec.shape))), (1,))

    graph = graph_of(build, (9000, 9000), "cuda")
    assert reductions(reduce_in_one_pass(graph)) == ["amax", "sum"]


def kernels_on_a_gpu(build, shape, stride=None) -> list[str]:
    return [kernel.name for kernel in compile_graph(graph_of(build, shape, "cuda", stride)).kernels]


@pytest.mark.parametrize(
    ("build", "shape", "kernels"),
    [
        (lambda b, x: variance(b, x, (0,), 1), (1 << 24,), 2),  # chunks, then their results
        (lambda b, x: variance(b, x, (0,), 1, of_mean=True), (1 << 24,), 2),
        (lambda b, x: (variance(b, x, (0,), 1)[0], b.amax(x, (0,))), (1 << 24,), 2),
        (lambda b, x: (b.amax(x, (0,)), b.prod(b.exp(x), (0,))), (1 << 24,), 2),
        (lambda b, x: softmax(b, x, 1, False), (1000, 100_000), 1),
        (lambda b, x: logsumexp(b, x, [1]), (8, 262_144), 2),
        (lambda b, x: variance(b, x, (0, 2, 3), 0), (64, 64, 56, 56), 2),
    ],
)
def test_kernels_on_a_gpu(build, shape, kernels) -> None:
    """Split reductions of one tensor read it in one kernel, and combine in one."""
    pytest.importorskip("triton")
    assert len(kernels_on_a_gpu(build, shape)) == kernels


def test_what_depends_on_reductions_alone_is_computed_by_their_kernel() -> None:
    """A division for each channel, not for each element."""

    def normalized(b, x):
        squares, middle = variance(b, x, (0, 2, 3), 0)
        return b.mul(
            b.sub(x, b.along(middle, (1,), x.spec.shape)),
            b.along(b.rsqrt(b.add(squares, 1e-5)), (1,), x.spec.shape),
        )

    kernels = explain_graph(graph_of(normalized, (64, 64, 56, 56), "cuda")).kernels
    assert len(kernels) == 3
    assert "div" not in kernels[-1] and "rsqrt" not in kernels[-1]
