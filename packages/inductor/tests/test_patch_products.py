"""Convolutions over patches as products: values and gradients, and which stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes import patch_products as module
from flambeau_inductor.graph_passes.patch_products import patch_products
from flambeau_inductor.options import InductorOptions
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import load

aten = torch.ops.aten
HALF = torch.bfloat16


def spec_of(tensor: torch.Tensor, device: str) -> Spec:
    return Spec.of(
        tensor.shape, stride=tensor.stride(), dtype=tensor.dtype, device=torch.device(device)
    )


def call(op: Any, tensors: list[torch.Tensor], rest: tuple[Any, ...], device: str = "cpu") -> Graph:
    """A graph of one call on these tensors and `rest`."""
    inputs = [Value(f"x{number}", spec_of(t, device)) for number, t in enumerate(tensors)]
    results = infer(op, tuple(value.spec for value in inputs) + rest, {})
    specs = results if isinstance(results, (tuple, list)) else (results,)
    node = Node(op, (*inputs, *rest), {})
    node.outputs = tuple(
        None if spec is None else Value(f"y{number}", spec, node)
        for number, spec in enumerate(specs)
    )
    return Graph(list(inputs), [node], [out for out in node.outputs if out is not None])


def settings(window: tuple[int, ...]) -> tuple[Any, ...]:
    rank = len(window)
    return list(window), [0] * rank, [1] * rank, False, [0] * rank, 1


def image(*shape: int, last: bool = False) -> torch.Tensor:
    x = torch.randn(shape)
    return (x.to(memory_format=torch.channels_last) if last else x).to(HALF)


CASES = [
    ((2, 3, 8, 12), (5, 3, 4, 4), False),
    ((2, 3, 8, 12), (5, 3, 4, 2), True),
    ((1, 1, 6), (4, 1, 3), False),
    ((2, 3, 4, 6, 8), (3, 3, 2, 3, 4), False),
]


@pytest.mark.parametrize(("shape", "weight", "last"), CASES)
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    last: bool,
) -> None:
    monkeypatch.setattr(module, "_DEVICES", {"cpu"})
    x, w = image(*shape, last=last), image(*weight)
    rest = settings(weight[2:])
    forward = call(aten.convolution.default, [x, w], (None, *rest))
    exact = aten.convolution.default(x.double(), w.double(), None, *rest)
    g = torch.randn_like(exact).to(HALF)
    backward = call(
        aten.convolution_backward.default, [g, x, w], (None, *rest, [True, True, False])
    )
    exact_gradients = aten.convolution_backward.default(
        g.double(), x.double(), w.double(), None, *rest, [True, True, False]
    )
    for graph, tensors, expected in (
        (forward, [x, w], [exact]),
        (backward, [g, x, w], exact_gradients[:2]),
    ):
        strides = [out.spec.stride for out in graph.outputs]
        patch_products(graph)
        check_graph(graph)
        ops = [node.op for node in graph.nodes]
        assert ops.count(aten.mm.default) == len(expected)
        assert not {aten.convolution.default, aten.convolution_backward.default} & set(ops)
        compiled = load(compile_graph(graph, InductorOptions(debug_checks=True)))
        for results in (run_graph(graph, tensors), compiled(*tensors)):
            for found, reference, stride in zip(results, expected, strides, strict=True):
                assert found.stride() == stride
                torch.testing.assert_close(found.double(), reference, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(("shape", "weight", "change", "dtype"), [
    ((2, 3, 9, 12), (5, 3, 4, 4), {}, HALF),
    ((2, 8, 8, 12), (5, 8, 4, 4), {}, HALF),
    ((2, 3, 8, 12), (5, 3, 1, 1), {}, HALF),
    ((2, 3, 8, 12), (5, 3, 4, 4), {0: [2, 2]}, HALF),
    ((2, 3, 8, 12), (5, 3, 4, 4), {1: [2, 2]}, HALF),
    ((2, 3, 8, 12), (5, 3, 4, 4), {}, torch.float32),
])  # fmt: skip
def test_others_stay(
    shape: tuple[int, ...], weight: tuple[int, ...], change: dict[int, Any], dtype: torch.dtype
) -> None:
    rest = list(settings(weight[2:]))
    for position, value in change.items():
        rest[position] = value
    x, w = image(*shape).to(dtype), image(*weight).to(dtype)
    graph = call(aten.convolution.default, [x, w], (None, *rest), "cuda")
    assert [node.op for node in patch_products(graph).nodes] == [aten.convolution.default]


def test_only_on_a_gpu() -> None:
    x, w = image(2, 3, 8, 12), image(5, 3, 4, 4)
    for device, count in (("cpu", 0), ("cuda", 1)):
        graph = call(aten.convolution.default, [x, w], (None, *settings((4, 4))), device)
        ops = [node.op for node in patch_products(graph).nodes]
        assert ops.count(aten.mm.default) == count
