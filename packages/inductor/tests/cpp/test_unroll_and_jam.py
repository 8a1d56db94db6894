"""Loops that are unrolled and jammed: windows of neighbours share their loads."""

from __future__ import annotations

import pytest
import torch
from run_cpp import I0, I1, OPTIONS, axes

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.cpp import unroll_and_jam
from flambeau_inductor.codegen.cpp.unroll_and_jam import COPIES, jam
from flambeau_inductor.ir import Compute, Load, Store
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load

F32 = torch.float32


@pytest.fixture
def jams_all(monkeypatch):
    """Whatever shares a load is jammed."""
    monkeypatch.setattr(unroll_and_jam, "SHARED_LEAST", 0.01)


def window(rows, columns, stride=1, outside=0.0):
    """Weighted sums over windows of (n, h, w, c), which is padded by one."""

    def build(b, x):
        image = b.pad(x, (0, 1, 1, 0), (0, 1, 1, 0), outside)
        total = None
        for row in range(rows):
            for column in range(columns):
                tap = image
                for dim, start, taps in ((1, row, rows), (2, column, columns)):
                    stop = image.spec.shape[dim] - taps + 1 + start
                    tap = b.slice(tap, dim, start, stop, stride)
                term = b.mul(tap, float(1 + row * columns + column))
                total = term if total is None else b.add(total, term)
        return total

    return build


def activated(b, x):
    """A window over something that is computed."""
    return window(2, 2, outside=1.5)(b, b.maximum(b.mul(x, 2.0), 0.0))


def check(tester, builds, tensors):
    """Compare with the primitives' references; the text of the kernels."""
    graph = tester.graph(
        lambda b, *xs: [build(b, x) for build, x in zip(builds, xs, strict=True)], tensors
    )
    program = compile_graph(graph, InductorOptions())
    got = load(program, OPTIONS)(*tensors)
    for mine, theirs in zip(got, run_graph(graph, tensors), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    return "".join(source.text for source in program.sources)


@pytest.mark.parametrize(
    "shape", [(2, 9, 31, 33), (1, 3, 5, 300), (3, 4, 4, 16), (2, 5, 3, 40), (1, 30, 2, 32)]
)
@pytest.mark.usefixtures("jams_all")
def test_windows_of_images(tester, shape):
    """Sizes that copies do not divide, fewer points than copies, rows longer than a strip."""
    x = torch.randn(shape)
    builds = [window(3, 3), window(3, 3, outside=2.0), window(3, 3, stride=2), activated]
    text = check(tester, builds, [x, x.clone(), x.double(), x.clone()])
    assert "jammed_here" in text
    assert "double_zeros" in text or shape[2] == 2


@pytest.mark.usefixtures("jams_all")
def test_rows_without_padding_and_of_one_axis(tester):
    def rows(b, x):
        height = x.spec.shape[0] - 2
        x = b.slice(x, 1, 1, x.spec.shape[1], 1)  # rows with gaps between them
        parts = [b.slice(x, 0, at, at + height, 1) for at in range(3)]
        return b.sub(b.add(parts[0], parts[1]), parts[2])

    tensors = [torch.randn(17, 40), torch.randn(40, 100), torch.randn(3, 64)]
    assert "jammed_here" in check(tester, [rows] * 3, tensors)


@pytest.mark.usefixtures("jams_all")
@pytest.mark.parametrize("height", [2, 3, 5, 7])
def test_rows_of_many_padded_images(tester, height):
    """Copies lie in several images, each behind a row of padding: the first and the last one do not
    say where the others are.
    """

    def rows(low, high):
        def build(b, x):
            image = b.pad(x, (0, low, 0), (0, high, 0), 2.0)
            count, height, width = image.spec.shape
            lines = b.reshape(image, (count * height, width))
            taps = [b.slice(lines, 0, at, at + count * height - 2, 1) for at in range(3)]
            return b.sub(b.add(taps[0], taps[1]), b.mul(taps[2], 2.0))

        return build

    builds = [rows(1, 0), rows(0, 1), rows(1, 1), rows(2, 1)]
    text = check(tester, builds, [torch.randn(9, height, 40) for _ in builds])
    assert "jammed_here" in text


def test_what_shares_no_loads_is_not_jammed(tester):
    def halves(b, x):
        size = x.spec.shape[0] // 2 * 2
        return b.add(b.slice(x, 0, 0, size, 2), b.slice(x, 0, 1, size, 2))

    text = check(tester, [halves, lambda b, x: b.mul(x, 2.0)], [torch.randn(32, 40)] * 2)
    assert "jammed_here" not in text


def test_windows_are_jammed_that_save_much(tester):
    """A window of maxima saves few of its loads; one with a weight for each channel also reads its
    weights once.
    """

    def largest(b, x):
        taps = [b.slice(x, 1, at, x.spec.shape[1] - 2 + at, 2) for at in range(3)]
        return b.maximum(b.maximum(taps[0], taps[1]), taps[2])

    def weighted(b, x):
        size = x.spec.shape[0] - 3
        weights = [
            b.expand(b.slice(x, 0, at, at + 1, 1), (size, x.spec.shape[1])) for at in range(3)
        ]
        taps = [b.slice(x, 0, at, at + size, 1) for at in range(3)]
        terms = [b.mul(tap, weight) for tap, weight in zip(taps, weights, strict=True)]
        return b.add(b.add(terms[0], terms[1]), terms[2])

    assert "jammed_here" not in check(tester, [largest], [torch.randn(3, 21, 40)])
    assert "jammed_here" in check(tester, [weighted], [torch.randn(19, 40)])


def test_equal_statements_are_shared_and_stores_come_last():
    (axis, _) = axes((I0, 16), (I1, 32))
    body = (
        Load("v0", F32, "b0", 32 * I0 + I1),
        Load("v1", F32, "b0", 32 * I0 + I1 + 32),
        Load("v2", F32, "b1", I1),
        Compute("v3", F32, "mul", ("v0", "v2")),
        Compute("v4", F32, "add", ("v3", "v1")),
        Store("b2", 32 * I0 + I1, "v4"),
    )
    jammed = jam(body, axis, [axis.symbol + number for number in range(COPIES)])
    loads = [s.index for s in jammed if isinstance(s, Load)]
    assert len(loads) == len(set(loads)) == COPIES + 2
    stores = jammed[-COPIES:]
    assert [store.index for store in stores] == [
        32 * I0 + I1 + 32 * number for number in range(COPIES)
    ]
    names = [s.name for s in jammed[:-COPIES]]
    assert len(names) == len(set(names))
