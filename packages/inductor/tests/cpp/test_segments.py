"""Rows that `cat` makes of parts: loops cut where the parts meet, against the primitives'
references.
"""

from __future__ import annotations

import pytest
import torch
from run_cpp import I0, OPTIONS

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.cpp.segments import cut
from flambeau_inductor.ir import Axis, Compute, Constant, IndexValue, Load, Store
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load

F32, I64, BOOL = torch.float32, torch.int64, torch.bool


def parts(b, *xs):
    """Parts of a last dim, each changed in its own way; and the same along the first dim."""
    changed = [b.mul(x, b.sin(x)) if n % 2 else b.neg(x) for n, x in enumerate(xs)]
    last = b.cat(changed, changed[0].spec.ndim - 1)
    return b.add(last, b.exp(last))


def negated_first(b, *xs):
    """Parts of a last dim, the first negated."""
    return b.cat([b.neg(xs[0]), *xs[1:]], xs[0].spec.ndim - 1)


def halves_swapped(b, x):
    """The halves of each row in the other order, one negated, beside the row itself."""
    dim, size = x.spec.ndim - 1, x.spec.shape[-1]
    first, second = b.slice(x, dim, 0, size // 2, 1), b.slice(x, dim, size // 2, size, 1)
    return b.add(x, b.cat([b.neg(second), first], dim))


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int32])
@pytest.mark.parametrize(
    "shapes",
    [
        [(5, 64), (5, 33), (5, 100)],
        [(7, 16), (7, 1)],
        [(64,), (500,), (31,)],
        [(3, 2, 40), (3, 2, 0), (3, 2, 25)],
        [(4, 40)] * 10,
        [(70, 3), (70, 2)],
    ],
)
def test_parts_of_rows(tester, shapes, dtype):
    tensors = [(torch.randn(shape) * 5).to(dtype) for shape in shapes]
    build = parts if dtype.is_floating_point else negated_first
    graph = tester.graph(build, tensors)
    got = load(compile_graph(graph, InductorOptions()), OPTIONS)(*tensors)
    for mine, theirs in zip(got, run_graph(graph, tensors), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("shape", [(6, 128), (2, 3, 64), (130,), (9, 34), (5, 8)])
def test_halves_of_rows(tester, shape):
    tensors = [torch.randn(shape)]
    graph = tester.graph(halves_swapped, tensors)
    (got,) = load(compile_graph(graph, InductorOptions()), OPTIONS)(*tensors)
    torch.testing.assert_close(got, run_graph(graph, tensors)[0])


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1,)])
def test_parts_that_are_one_number_in_a_row(tester, shape):
    def of_one_number(b, x):
        dim = x.spec.ndim - 1
        spread = b.expand(x, (*x.spec.shape[:-1], 64))
        return b.cat([b.sin(spread), b.mul(b.cos(spread), 2.0)], dim)

    tensors = [torch.randn(shape)]
    graph = tester.graph(of_one_number, tensors)
    (got,) = load(compile_graph(graph, InductorOptions()), OPTIONS)(*tensors)
    torch.testing.assert_close(got, run_graph(graph, tensors)[0])


def halves(size: int):
    """A row whose halves come from two buffers, and its axis."""
    body = (
        IndexValue("v0", I64, I0),
        Constant("v1", I64, size // 2),
        Compute("v2", BOOL, "lt", ("v0", "v1")),
        Load("v3", F32, "b0", I0, "v2"),
        Compute("v4", BOOL, "ge", ("v0", "v1")),
        Load("v5", F32, "b1", I0 - size // 2, "v4"),
        Compute("v6", F32, "where", ("v2", "v3", "v5")),
        Store("b2", I0, "v6"),
    )
    return body, Axis(I0, size)


def test_segments_have_no_conditions():
    segments = cut(*halves(128))
    assert [start for start, _ in segments] == [0, 64]
    for (_, body), buffer in zip(segments, ("b0", "b1"), strict=True):
        loads = [s for s in body if isinstance(s, Load)]
        assert [(s.buffer, s.mask) for s in loads] == [(buffer, None)]
        assert not any(isinstance(s, Compute) for s in body)


def test_short_rows_are_left_whole():
    assert cut(*halves(16)) is None
