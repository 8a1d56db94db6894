"""Scans: running sums, products, logarithms of sums, extremes and their places."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check, decomposed, flat

from flambeau_prims.builder import Builder
from flambeau_prims.decompositions.scan import reversed_scan
from flambeau_prims.graph import Graph, Value
from flambeau_prims.primitives import Kind
from flambeau_prims.spec import spec_of

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
SHAPES = (((), 0), ((), -1), ((7,), 0), ((3, 5), 1), ((3, 5), -2), ((2, 3, 4), 1), ((0, 3), 0))
EMPTY = ((3, 0), 1), ((3, 1), 1)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_sums_and_products(name: str) -> None:
    op = getattr(aten, name).default
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for special in (False, True):
            make = Make(1, dtype, special=special)
            for shape, dim in (*SHAPES, *EMPTY):
                check(op, make(*shape), dim, near=1.0)
    check(op, Make(2, torch.int64)(3, 5), 1, dtype=torch.int16)
    check(op, Make(2, torch.bfloat16)(3, 90), 1, dtype=torch.float32, near=1.0)
    check(op, Make(2, torch.int32)(3, 9), 0, dtype=torch.float32)


def test_logarithms_of_sums() -> None:
    for dtype in FLOATS:
        for special in (False, True):
            make = Make(3, dtype, special=special)
            for shape, dim in (*SHAPES, *EMPTY):
                check(aten.logcumsumexp.default, make(*shape), dim, near=1.0)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extremes(name: str) -> None:
    op = getattr(aten, name).default
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for special in (False, True):
            make = Make(4, dtype, special=special)
            for shape, dim in (*SHAPES, *EMPTY, ((4, 40), 1)):
                check(op, make(*shape), dim, exact=True)
    nan = float("nan")
    ties = torch.tensor([1.0, 1.0, 0.0, -0.0, nan, 5.0, nan, 2.0])
    check(op, ties, 0, exact=True)
    check(op, ties.flip(0), 0, exact=True)
    check(op, torch.full((5,), float("-inf")), 0, exact=True)


def test_a_scan_between_flips_is_one_reversed_scan() -> None:
    x = torch.randn(3, 5, dtype=torch.bfloat16)
    graph = Graph([Value("x", spec_of(x))])
    b = Builder(graph.nodes, ["x"])
    flipped = b.cast(b.flip(graph.inputs[0], (1,)), torch.float32)
    scanned = b.cast(b.cumsum(flipped, 1, False), torch.bfloat16)
    result = reversed_scan(b, scanned, (1,))
    assert result is not None
    (scan,) = [n for n in graph.nodes if n.op.kind is Kind.SCAN and n.args[2]]
    assert scan.args[0].producer.args[0] is graph.inputs[0]
    assert reversed_scan(b, scanned, (0,)) is None
    assert reversed_scan(b, graph.inputs[0], (1,)) is None


def test_indices_come_from_a_scan_of_places() -> None:
    x = torch.randn(3, 5)
    graph, _ = decomposed(aten.cummax.default, (x, 1), {}, flat(torch.cummax(x, 1)))
    assert [n.op.name for n in graph.nodes if n.op.kind is Kind.SCAN] == ["cummax", "cummax"]
