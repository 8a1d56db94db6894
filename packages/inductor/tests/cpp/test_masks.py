"""Kernels with masked loads: peeled loops against the primitives' references, and what peeling
makes of a body.
"""

from __future__ import annotations

import pytest
import torch
from run_cpp import I0, I1, OPTIONS, axes, params

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.codegen.cpp.peel import peel
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load, LoopKernel, Store
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import load

F32, I64, BOOL = torch.float32, torch.int64, torch.bool


def shifted(b, x, rows, columns, outside):
    """x moved by (rows, columns) in its last two dims, `outside` where it was not."""
    height, width = x.spec.shape[-2:]
    dims = x.spec.ndim - 2
    for dim, by, size in ((dims, rows, height), (dims + 1, columns, width)):
        low, high = [0] * x.spec.ndim, [0] * x.spec.ndim
        low[dim], high[dim] = max(by, 0), max(-by, 0)
        x = b.slice(x, dim, max(-by, 0), size - max(by, 0), 1)
        x = b.pad(x, low, high, outside)
    return x


def neighbours(b, x):
    """Sum over shifted copies, with a different value outside for each."""
    total = x
    for number, (rows, columns) in enumerate(((1, 0), (-1, 0), (0, 2), (0, -1), (1, -1), (-2, 1))):
        total = b.add(total, b.mul(shifted(b, x, rows, columns, number), number + 2))
    return total


def run_all(tester, builds, tensors):
    """All of `builds` in one program; each gets the tensor of its place."""
    graph = tester.graph(
        lambda b, *xs: [build(b, x) for build, x in zip(builds, xs, strict=True)], tensors
    )
    program = compile_graph(graph, InductorOptions())
    got = load(program, OPTIONS)(*tensors)
    for mine, theirs in zip(got, run_graph(graph, tensors), strict=True):
        assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    return program


def test_shifts_of_images(tester):
    """In both layouts, of sizes that do not fill a vector, and longer than the rows that are
    staged.
    """
    shapes = ((2, 3, 7, 9), (1, 17, 5, 6), (2, 2, 3, 70), (1, 300, 3, 4), (3, 1, 4, 33))
    images = [torch.randn(shape) for shape in shapes]
    images += [x.contiguous(memory_format=torch.channels_last) for x in images]
    images += [torch.randint(-9, 9, (2, 5, 6, 7)), torch.randn(1, 4, 5, 6, dtype=torch.float64)]
    run_all(tester, [neighbours] * len(images), images)


def test_masks_of_other_shapes(tester):
    """One mask, nested masks, masked values that are computed, halves and bools, masks that exclude
    one another.
    """

    def mixed(b, x):
        return b.maximum(
            shifted(b, b.exp(x), 1, 1, 0.5), shifted(b, shifted(b, x, 0, 1, 2.0), 2, -1, -1.0)
        )

    def halves(b, x):
        return b.where(
            shifted(b, b.gt(b.cast(x, F32), 0.0), 1, -1, True), shifted(b, x, -1, 1, 1.0), x
        )

    def joined(b, x):
        return b.cat([b.pad(x, (1, 0), (0, 1), 3.0), b.pad(x, (0, 1), (1, 0), 4.0)], 1)

    builds = [
        lambda b, x: b.pad(x, (2, 3), (1, 4), 7.0),
        lambda b, x: b.pad(b.exp(x), (2, 0), (0, 0), 7.0),
        lambda b, x: b.pad(x, (40,), (3,), 7.0),
        lambda b, x: b.pad(b.slice(x, 1, 2, 2, 1), (0, 3), (0, 2), 1.0),
        mixed, mixed, halves, joined,
        lambda b, x: b.slice(b.pad(x, (0, 3), (0, 4), 7.0), 1, 1, 30, 3),
    ]  # fmt: skip
    tensors = [
        torch.randn(5, 37),
        torch.randn(5, 37),
        torch.randn(100),
        torch.randn(4, 6),
        torch.randn(6, 40),
        torch.randn(2, 20, 5, 6).contiguous(memory_format=torch.channels_last),
        torch.randn(2, 20, 5, 6).bfloat16().contiguous(memory_format=torch.channels_last),
        torch.randn(9, 33),
        torch.randn(3, 25),
    ]
    run_all(tester, builds, tensors)


def test_masks_of_transposed_operands(tester):
    """Rows are staged within a loop over tiles."""
    shapes = ((1, 16, 9, 31), (2, 300, 5, 33), (1, 40, 64, 3))
    images = [torch.randn(shape) for shape in shapes]
    tensors = [y for x in images for y in (x, x.to(memory_format=torch.channels_last))]

    def build(b, *xs):
        pairs = zip(xs[::2], xs[1::2], strict=True)
        return [
            b.add(one, neighbours(b, other)) for x, y in pairs for one, other in ((x, y), (y, x))
        ]

    graph = tester.graph(build, tensors)
    program = compile_graph(graph, InductorOptions())
    assert any("stage_tile" in s.text and "strip_end" in s.text for s in program.sources)
    for mine, theirs in zip(
        load(program, OPTIONS)(*tensors), run_graph(graph, tensors), strict=True
    ):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("channels_last", [False, True])
def test_symbolic_sizes(tester, channels_last):
    """One program for all sizes, also those at which no place is inside."""
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def image(*shape):
        return torch.randn(shape).contiguous(memory_format=layout)

    env = SizeEnv()
    n, c, h, w = (
        env.symbol(size, source) for size, source in ((2, "n"), (19, "c"), (6, "h"), (23, "w"))
    )
    stride = (c * h * w, 1, c * w, c) if channels_last else (c * h * w, h * w, w, 1)
    graph = tester.graph(lambda b, x: x, [image(2, 19, 6, 23)])
    (x,) = graph.inputs
    x.spec = Spec.of((n, c, h, w), stride=stride, dtype=F32, device=torch.device("cpu"))
    graph.env = env
    graph.outputs = [neighbours(Builder(graph.nodes, ["x0"]), x)]
    run = load(compile_graph(graph, InductorOptions()), OPTIONS)
    for shape in ((2, 19, 6, 23), (1, 3, 2, 2), (3, 300, 3, 5), (1, 2, 9, 300)):
        x = image(*shape)
        static = tester.graph(neighbours, [x])
        torch.testing.assert_close(run(x)[0], run_graph(static, [x])[0])


BODY = (
    IndexValue("v0", I64, I0),
    Constant("v1", I64, 1),
    Compute("v2", BOOL, "ge", ("v0", "v1")),
    IndexValue("v3", I64, I1),
    Compute("v4", BOOL, "ge", ("v3", "v1")),
    Compute("v5", BOOL, "bitwise_and", ("v2", "v4")),
    Load("v6", F32, "b0", 64 * I0 + I1 - 65, "v5"),
    Constant("v7", F32, 9.0),
    Compute("v8", F32, "where", ("v5", "v6", "v7")),
    Load("v9", F32, "b0", 64 * I0 + I1 - 64, "v2"),
    Compute("v10", F32, "where", ("v2", "v9", "v7")),
    Compute("v11", F32, "add", ("v8", "v10")),
    Store("b1", 64 * I0 + I1, "v11"),
)
AXES = axes((I0, 32), (I1, 64))


def test_what_is_peeled():
    """Along i1 the range from 1; across it the first row, where both loads are out of range."""
    peeled = peel(BODY, AXES[1])
    assert [(r.begin, r.end) for r in peeled.ranges] == [(1, None)]
    assert peeled.across == ("v2",) and peeled.outside == BODY and not peeled.staged
    loads = [s for s in peeled.inside if isinstance(s, Load)]
    assert len(loads) == 2 and not any(load.mask for load in loads)
    assert not any(isinstance(s, Load) for s in peeled.border)


def test_what_is_not_peeled():
    """Conditions that are no comparison of indices, that exclude one another, and bodies whose
    indices are values.
    """
    by_value = (
        Load("v0", BOOL, "b2", I1),
        Load("v1", F32, "b0", I1, "v0"),
        Store("b1", I1, "v1"),
    )
    assert peel(by_value, AXES[1]) is None
    halves = (
        IndexValue("v0", I64, I1),
        Constant("v1", I64, 32),
        Compute("v2", BOOL, "lt", ("v0", "v1")),
        Compute("v3", BOOL, "ge", ("v0", "v1")),
        Load("v4", F32, "b0", I1, "v2"),
        Load("v5", F32, "b0", I1 - 32, "v3"),
        Compute("v6", F32, "where", ("v2", "v4", "v5")),
        Store("b1", I1, "v6"),
    )
    assert peel(halves, AXES[1]) is None
    assert peel((Load("v0", F32, "b0", I1), Store("b1", I1, "v0")), AXES[1]) is None


def test_golden(golden):
    kernel = LoopKernel("cpu", params((F32, "read"), (F32, "write")), (), AXES, (), BODY)
    golden("cpp_peeled", write_source([(kernel, "peeled")]))
