"""Rows that `cat` makes of parts: loops cut where the parts meet, against the primitives'
references.
"""

from __future__ import annotations

import pytest
import torch
from run_cpp import I0, I1, I2, OPTIONS

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.cpp.segments import MOST, cut, ways_along
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


def computed_parts(b, *xs):
    """Parts of the second dim, each changed in float32."""
    wide = [b.cast(x, F32) for x in xs]
    changed = [b.mul(x, 2.0) if n % 2 else b.add(b.sin(x), 1.0) for n, x in enumerate(wide)]
    return b.cat([b.cast(x, one.spec.dtype) for x, one in zip(changed, xs, strict=True)], 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, F32])
@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 4, 5, 7), (3, 6, 5, 7)],
        [(2, 1, 130), (2, 9, 130)],
        [(2, 3, 40), (2, 0, 40), (2, 5, 40), (2, 1, 40)],
        [(1, 1, 33)] * (MOST + 2),
    ],
)
@pytest.mark.parametrize("strided", [False, True])
def test_parts_of_an_outer_dim(tester, shapes, dtype, strided):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-7, 6e4])
    tensors = []
    for shape in shapes:
        tensor = torch.randn(shape)
        tensor.view(-1)[:6] = special[: tensor.numel()]
        tensor = tensor.to(dtype)
        tensors.append(tensor.transpose(1, -1).contiguous().transpose(1, -1) if strided else tensor)
    graph = tester.graph(computed_parts, tensors)
    (got,) = load(compile_graph(graph, InductorOptions()), OPTIONS)(*tensors)
    (expected,) = run_graph(graph, tensors)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, equal_nan=True)


def wrapped(b, x):
    """Two dims, each with its last element before it and its first one behind."""
    for dim in (1, 2):
        size = x.spec.shape[dim]
        last, first = b.slice(x, dim, size - 1, size, 1), b.slice(x, dim, 0, 1, 1)
        x = b.cat([last, x, first], dim)
    return x


@pytest.mark.parametrize("shape", [(2, 5, 7, 40), (1, 1, 1, 33), (3, 2, 20, 5)])
def test_parts_along_two_outer_dims(tester, shape):
    for tensor in (torch.randn(shape), torch.randn(shape[::-1]).permute(3, 2, 1, 0)):
        graph = tester.graph(wrapped, [tensor])
        (got,) = load(compile_graph(graph, InductorOptions()), OPTIONS)(tensor)
        torch.testing.assert_close(got, run_graph(graph, [tensor])[0], rtol=0, atol=0)


def test_outer_conditions_choose_between_loops():
    """Nine parts, of a kernel that walks i0 and i1 around a vector loop along i2."""
    body = [Constant("one", I64, 1), Constant("last", I64, 9)]
    parts = {}
    for axis in (I0, I1):
        name = axis.name
        body += [
            IndexValue(name + "_at", I64, axis),
            Compute(name + "_first", BOOL, "lt", (name + "_at", "one")),
            Compute(name + "_ge", BOOL, "ge", (name + "_at", "one")),
            Compute(name + "_lt", BOOL, "lt", (name + "_at", "last")),
            Compute(name + "_inside", BOOL, "bitwise_and", (name + "_ge", name + "_lt")),
            Compute(name + "_end", BOOL, "ge", (name + "_at", "last")),
        ]
        parts[name] = [name + "_first", name + "_inside", name + "_end"]
    row = []
    for y, outer in enumerate(parts["i0"]):
        loaded = []
        for x, inner in enumerate(parts["i1"]):
            mask, value = f"m{y}{x}", f"x{y}{x}"
            body.append(Compute(mask, BOOL, "bitwise_and", (outer, inner)))
            body.append(Load(value, F32, f"b{3 * y + x}", I2, mask))
            loaded.append(value)
        body.append(Compute(f"t{y}", F32, "where", ("i1_inside", loaded[1], loaded[2])))
        body.append(Compute(f"w{y}", F32, "where", ("i1_first", loaded[0], f"t{y}")))
        row.append(f"w{y}")
    body.append(Compute("t", F32, "where", ("i0_inside", row[1], row[2])))
    body.append(Compute("w", F32, "where", ("i0_first", row[0], "t")))
    body.append(Store("b9", I2 + 64 * I1 + 640 * I0, "w"))
    ways = ways_along(tuple(body), Axis(I2, 64), (Axis(I0, 10), Axis(I1, 10)))
    assert [condition for condition, _ in ways] == [
        "i0 < 1 && i1 < 1", "i0 < 1 && i1 < 9", "i0 < 1",
        "i0 < 9 && i1 < 1", "i0 < 9 && i1 < 9", "i0 < 9",
        "i1 < 1", "i1 < 9", "",
    ]  # fmt: skip
    for number, (_, way) in enumerate(ways):
        assert [(s.buffer, s.mask) for s in way if isinstance(s, Load)] == [(f"b{number}", None)]
        assert not any(isinstance(s, Compute) for s in way)
