"""The primitives' own Specs and references, and the checker of their laws."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder
from flambeau_prims.check import GraphError, check_graph
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import PRIMS, Kind
from flambeau_prims.spec import Spec, spec_of

CPU = torch.device("cpu")

x = torch.rand(3, 4) + 0.25
mask = torch.rand(3, 4) > 0.5
whole = torch.randint(1, 9, (3, 4))
SAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "where": [(mask, x, 1.0), (mask, 2, whole), (mask, x, x.t().contiguous().t())],
    "cast": [(x, torch.int64), (mask, torch.bfloat16)],
    "fma": [(x, x, 1.0), (x.double(), 2.0, x.double())],
    "argmax": [(x, 1), (mask, 0)],
    "argmin": [(x, 0)],
    "sum_exp": [(x, (0, 1)), (x.double(), (1,)), (x, ())],
    "squared_deviations": [(x, (0, 1)), (x.double(), (1,)), (x, ())],
    "mean": [(x, (0, 1)), (x.double(), (1,)), (x, ())],
    "any": [(mask, (0, 1)), (mask, ())],
    "all": [(mask, (1,))],
    "cumsum": [(x, 1, False), (whole, 0, True)],
    "cumprod": [(x, 0, False), (x, 1, True)],
    "cummax": [(x, 1, False), (mask, 0, True)],
    "cummin": [(whole, 1, True)],
    "logcumsumexp": [(x, 1, False), (x, 0, True)],
    "sort": [(x, 1, False, 4), (mask, 0, True, 3), (whole, 0, True, 2)],
    "argsort": [(x, 1, True, 4), (mask, 0, False, 3), (x, 1, False, 0)],
    "searchsorted": [(x[0].sort().values, x, True), (x.sort(1).values, x, False)],
    "expand": [(torch.rand(3, 1), (2, 3, 4))],
    "permute": [(x, (1, 0))],
    "reshape": [(x, (2, 6)), (x.t(), (12,))],
    "unsqueeze": [(x, 0), (x, 2)],
    "squeeze": [(torch.rand(1, 3, 1), (0, 2))],
    "slice": [(x, 1, 1, 4, 2), (x, 0, 2, 2, 1)],
    "select": [(x, 0, 2)],
    "diagonal": [(x, 1, 0, 1), (x, -2, 0, 1)],
    "as_strided": [(x, (2, 2), (5, 1), 2)],
    "flip": [(x, (0,))],
    "gather": [(x, 1, torch.randint(0, 4, (3, 2)))],
    "index": [
        (x, [None, torch.randint(-4, 4, (2, 5))]),
        (x, [torch.tensor([0]), torch.tensor([1])]),
    ],
    "index_put": [
        (x, [None, torch.randint(-4, 4, (2, 5))], torch.randn(3, 2, 5), True),
        (x, [torch.tensor([0]), torch.tensor([1])], torch.randn(1), False),
    ],
    "index_reduce": [
        (x, [None, torch.randint(-4, 4, (2, 5))], torch.randn(3, 2, 5), "max"),
        (x, [torch.tensor([0]), torch.tensor([1])], torch.randn(1), "mul"),
    ],
    "pad": [(x, (1, 0), (0, 2), 7.0)],
    "cat": [([x, x[:1]], 0)],
    "full": [((2, 3), 1.5, torch.float32, CPU), ((), True, torch.bool, CPU)],
    "empty": [((2, 0), torch.int8, CPU)],
    "iota": [(5, 3, -2, torch.int32, CPU)],
    "random_words": [(torch.tensor([7, 8]), (3, 500), 512, "strided_wide", 1, CPU)],
    "random_member": [((3, 500), 512, "strided_pairs", CPU)],
    "clone": [(x.t(),)],
    "to_device": [(x, CPU)],
    "round": [(x,)],
    "isnan": [(x,)],
    "isinf": [(x,)],
}


def samples(name: str) -> list[tuple[Any, ...]]:
    """Calls of a primitive: those of the table, or its operands in every dtype it takes."""
    if name in SAMPLES:
        return SAMPLES[name]
    prim = PRIMS[name]
    if prim.kind is Kind.REDUCTION:
        return [(x, (0,)), (x, (0, 1)), (whole, (1,)), (x, ())]
    found: list[tuple[Any, ...]] = []
    for operand in (x, whole, mask):
        calls = (
            [(operand,)]
            if len(prim.params) == 1
            else [(operand, operand), (operand, 1), (1, operand)]
        )
        try:
            prim.infer(spec_of(operand), *([spec_of(operand)] * (len(prim.params) - 1)))
        except TypeError:
            continue
        found += calls
    assert found, name
    return found


def specs(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return spec_of(arg)
    return type(arg)(map(specs, arg)) if isinstance(arg, (list, tuple)) else arg


@pytest.mark.parametrize("name", PRIMS)
def test_infer_agrees_with_reference(name: str) -> None:
    prim = PRIMS[name]
    for args in samples(name):
        spec, result = prim.infer(*map(specs, args)), prim(*args)
        assert (tuple(result.shape), result.dtype) == (spec.shape, spec.dtype), (name, args)
        if prim.kind is Kind.VIEW:
            shown = [
                (size, step) for size, step in zip(spec.shape, spec.stride, strict=True) if size > 1
            ]
            assert shown == [
                (size, step)
                for size, step in zip(result.shape, result.stride(), strict=True)
                if size > 1
            ]
            if (
                result.numel()
                and result.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()
            ):
                assert spec.offset == result.storage_offset()


@pytest.mark.parametrize("name", PRIMS)
def test_calls_pass_the_checker(name: str) -> None:
    for args in samples(name):
        inputs: list[Value] = []
        tensors: list[torch.Tensor] = []

        def lift(
            arg: Any, inputs: list[Value] = inputs, tensors: list[torch.Tensor] = tensors
        ) -> Any:
            if isinstance(arg, torch.Tensor):
                inputs.append(Value(f"x{len(inputs)}", spec_of(arg)))
                tensors.append(arg)
                return inputs[-1]
            return type(arg)(lift(item) for item in arg) if isinstance(arg, (list, tuple)) else arg

        lifted = tuple(map(lift, args))
        builder = Builder([])
        value = builder._append(PRIMS[name], lifted)
        graph = Graph(inputs, builder.nodes, [value])
        check_graph(graph)
        (result,) = run_graph(graph, tensors)
        if name != "empty":
            torch.testing.assert_close(
                result, PRIMS[name](*args), rtol=0, atol=0, equal_nan=True, check_stride=False
            )
        if PRIMS[name].kind is not Kind.VIEW:
            assert result.stride() == value.spec.stride


def test_prims_pickle_by_name() -> None:
    assert all(pickle.loads(pickle.dumps(prim)) is prim for prim in PRIMS.values())


def value(shape: tuple[int, ...] = (3, 4), dtype: torch.dtype = torch.float32) -> Value:
    return Value("x", Spec.of(shape, dtype=dtype))


@pytest.mark.parametrize(
    ("prim", "args"),
    [
        (prims.add, (value(), value((3, 1)))),
        (prims.add, (value(), value(dtype=torch.float64))),
        (prims.add, (1.0, 2.0)),
        (prims.exp, (value(dtype=torch.bfloat16),)),
        (prims.exp, (value(dtype=torch.int64),)),
        (prims.add, (value(dtype=torch.bool), 1)),
        (prims.sum, (value(), (0, 0))),
        (prims.sum, (value(), (2,))),
        (prims.sum, (value(), [0])),
        (prims.sum, (value(dtype=torch.bool), (0,))),
        (prims.where, (value(), value(), value())),
        (prims.reshape, (value(), (5,))),
        (prims.expand, (value(), (3, 5))),
        (prims.cat, ([value(), value((2, 5))], 0)),
        (prims.gather, (value(), 0, value())),
        (prims.iota, (3, 0, 1, torch.float32, CPU)),
        (prims.permute, (value(), (0,))),
        (prims.squeeze, (value(), (0,))),
        (prims.add, (value(),)),
        (prims.cast, (value(), "float")),
        (prims.index, (value(), [None, None])),
    ],
)
def test_the_checker_refuses(prim: Any, args: tuple[Any, ...]) -> None:
    inputs = list(dict.fromkeys(arg for arg in args if isinstance(arg, Value)))
    inputs += [
        item for arg in args if isinstance(arg, list) for item in arg if isinstance(item, Value)
    ]
    for i, one in enumerate(inputs):
        one.name = f"x{i}"
    out = Value("y", Spec.of((3, 4)))
    out.producer = Node(prim, args, {}, (out,))
    with pytest.raises(GraphError):
        check_graph(Graph(inputs, [out.producer], [out]))


def test_the_checker_refuses_wrong_results_and_order() -> None:
    a = value()
    for spec in (Spec.of((4, 3)), Spec.of((3, 4), dtype=torch.float64)):
        out = Value("y", spec)
        out.producer = Node(prims.exp, (a,), {}, (out,))
        with pytest.raises(GraphError, match="should be"):
            check_graph(Graph([a], [out.producer], [out]))
    turned = Value("y", Spec.of((4, 3)))
    turned.producer = Node(prims.permute, (a, (1, 0)), {}, (turned,))
    with pytest.raises(GraphError, match="view"):
        check_graph(Graph([a], [turned.producer], [turned]))
    with pytest.raises(GraphError, match="before it is defined"):
        check_graph(Graph([], [turned.producer], []))
    with pytest.raises(GraphError, match="is defined nowhere"):
        check_graph(Graph([a], [], [turned]))
