"""Sorts, selections by rank and binary searches of short rows."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

from flambeau_prims.decompose import decompose
from flambeau_prims.decompositions.sort import LONGEST
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
REAL = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = (((), -1), ((7,), 0), ((3, 5), 1), ((3, 40), 1), ((3, 5), -2), ((2, 3, 4), 1), ((0, 3), 0))


@pytest.mark.parametrize("descending", [False, True])
def test_stable_sorts(descending: bool) -> None:
    for dtype in REAL:
        for special in (False, True):
            make = Make(1, dtype, special=special)
            for shape, dim in SHAPES:
                x = make(*shape)
                values = {"stable": True, "dim": dim, "descending": descending}
                check(aten.sort.stable, x, exact=dtype is not torch.float16, **values)
                check(aten.argsort.stable, x, **values)


def test_sorts_of_distinct_elements() -> None:
    x = torch.randperm(60).reshape(3, 20).float()
    check(aten.sort.default, x, 1, exact=True)
    check(aten.sort.default, x, 0, True, exact=True)
    check(aten.argsort.default, x, -1, True)
    check(aten.msort.default, x, exact=True)


def test_long_rows_and_selections_on_a_cpu_stay_calls() -> None:
    x = torch.randn(2, LONGEST["cpu"] + 1)
    for op, args in (
        (aten.sort.default, (x, 1)),
        (aten.topk.default, (x[:, :20], 3)),
        (aten.kthvalue.default, (x[:, :20], 3)),
        (aten.median.dim, (x[:, :20], 1)),
    ):
        graph, _ = decomposed(op, args, {}, flat(op(*args)))
        assert not is_decomposed(graph)


def selected(op, x: torch.Tensor, *args) -> list[torch.Tensor]:
    """The call as on a GPU, decomposed and computed on the CPU."""
    device = torch.device("cuda")
    value = Value("x", Spec.of(x.shape, dtype=x.dtype, device=device))
    specs = infer(op, (value.spec, *args), {})
    specs = specs if isinstance(specs, tuple) else (specs,)
    node = Node(op, (value, *args), {}, (), "model.py:1")
    node.outputs = tuple(Value(f"y{i}", spec, node) for i, spec in enumerate(specs))
    graph = decompose(Graph([value], [node], list(node.outputs)))
    assert is_decomposed(graph), f"{op} is left to ATen:\n{graph}"
    for made in graph.nodes:
        made.args = tuple(torch.device("cpu") if arg == device else arg for arg in made.args)
    return run_graph(graph, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_selections_on_a_gpu(dtype: torch.dtype) -> None:
    x = torch.stack([torch.randperm(21) for _ in range(4)]).to(dtype)
    if dtype.is_floating_point:
        x[1, 4] = x[1, 9] = float("nan")
        x[2, 3] = float("inf")
    for largest in (True, False):
        for k in (0, 1, 5, 21):
            want = torch.topk(x, k, 1, largest=largest)
            values, indices = selected(aten.topk.default, x, k, 1, largest)
            torch.testing.assert_close(values, want.values, equal_nan=True)
            torch.testing.assert_close(x.gather(1, indices), want.values, equal_nan=True)
    for op, args in (
        (aten.kthvalue.default, (1, 1)),
        (aten.kthvalue.default, (19, 1, True)),
        (aten.kthvalue.default, (21, 1)),
        (aten.median.dim, (1,)),
        (aten.median.dim, (0, True)),
        (aten.nanmedian.dim, (1,)),
    ):
        want = op(x, *args)
        values, indices = selected(op, x, *args)
        assert values.dtype is dtype
        torch.testing.assert_close(values, want[0], equal_nan=True)
        if not want[0].isnan().any():
            assert torch.equal(indices, want[1])
    for op in (aten.median.default, aten.nanmedian.default):
        torch.testing.assert_close(selected(op, x)[0], op(x), equal_nan=True)


@pytest.mark.parametrize("right", [False, True])
def test_searches(right: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int16):
        make = Make(2, dtype, special=dtype.is_floating_point)
        edges = make(9).sort().values
        x = make(3, 17)
        check(aten.searchsorted.Tensor, edges, x, right=right)
        check(aten.bucketize.Tensor, x, edges, right=right, out_int32=True)
        rows = make(3, 6).sort(1).values
        check(aten.searchsorted.Tensor, rows, make(3, 4), side="right" if right else None)
        check(aten.searchsorted.Scalar, edges, 2, right=right)
        check(aten.bucketize.Scalar, 1, edges, right=right)
    check(aten.searchsorted.Scalar, torch.arange(5.0), 2.5, right=right)


def test_searches_that_aten_answers() -> None:
    edges, x = torch.arange(5.0), torch.randn(3)
    order = torch.arange(5)
    for args, kwargs in (
        ((edges, x), {"sorter": order}),
        ((edges.double(), x), {}),
        ((torch.empty(0), x), {}),
    ):
        graph, _ = decomposed(
            aten.searchsorted.Tensor, args, kwargs, [aten.searchsorted.Tensor(*args, **kwargs)]
        )
        assert not is_decomposed(graph)
