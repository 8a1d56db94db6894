"""Convolutions of few pixels by large weights as matrix products: values, layouts, and what stays a
convolution.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.convolution_products import convolutions_to_products
from flambeau_inductor.options import InductorOptions
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import load

CONVOLUTION = torch.ops.aten.convolution.default
FORMATS = (torch.contiguous_format, torch.channels_last)


def tensors(
    image: tuple[int, ...], weight: tuple[int, ...], bias: bool, memory_format: Any, dtype: Any
) -> list[torch.Tensor]:
    """An image in channels-last layout, a weight in the given one, and a bias, if any."""
    x = torch.randn(image).to(dtype).to(memory_format=torch.channels_last)
    w = (torch.randn(weight) / 64).to(dtype).to(memory_format=memory_format)
    return [x, w, torch.randn(weight[0]).to(dtype)] if bias else [x, w]


def graph_of(inputs: list[torch.Tensor], stride: int, padding: list[int], groups: int) -> Graph:
    """A convolution of the inputs."""
    values = [
        Value(name, Spec.of(tensor.shape, dtype=tensor.dtype).replace(stride=tensor.stride()))
        for name, tensor in zip("xwb", inputs, strict=False)
    ]
    graph = Graph(list(values))
    x, w, *bias = values
    rest = ([stride] * 2, padding, [1, 1], False, [0, 0], groups)
    args = (x, w, bias[0] if bias else None, *rest)
    specs = (x.spec, w.spec, bias[0].spec if bias else None)
    out = Value("y", infer(CONVOLUTION, (*specs, *rest), {}))
    out.producer = Node(CONVOLUTION, args, {}, (out,), "model.py:1")
    graph.nodes.append(out.producer)
    graph.outputs = [out]
    return graph


def calls(graph: Graph) -> list[str]:
    """The ATen operators of a graph."""
    return [str(node.op) for node in graph.nodes if "aten" in str(node.op)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(
    ("image", "weight", "stride", "padding"),
    [
        ((1, 96, 7, 7), (512, 96, 3, 3), 1, [1, 1]),
        ((2, 64, 9, 8), (512, 64, 3, 5), 2, [0, 2]),
        ((3, 128, 5, 5), (2100, 128, 1, 1), 1, [0, 0]),
        ((1, 640, 11, 6), (512, 640, 1, 1), 2, [0, 0]),
        ((2, 640, 3, 3), (512, 640, 1, 1), 1, [1, 1]),
        ((2, 16, 220, 211), (96, 16, 1, 1), 1, [0, 0]),
    ],
)
def test_values_and_layout(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: list[int],
    memory_format: torch.memory_format,
    bias: bool,
) -> None:
    inputs = tensors(image, weight, bias, memory_format, torch.float32)
    graph = convolutions_to_products(graph_of(inputs, stride, padding, 1))
    check_graph(graph)
    assert calls(graph) == ["aten.addmm.default" if bias else "aten.mm.default"]
    (result,) = load(compile_graph(graph, InductorOptions(debug_checks=True)))(*inputs)
    expected = torch.conv2d(*inputs, stride=stride, padding=padding)
    exact = torch.conv2d(*(one.double() for one in inputs), stride=stride, padding=padding)
    assert result.stride() == expected.stride()
    bound = 4 * (expected - exact).abs().max() + 1e-6
    assert (result - exact).abs().max() <= bound


@pytest.mark.parametrize(
    ("image", "weight", "dtype", "groups", "memory_format"),
    [
        ((8, 96, 7, 7), (512, 96, 3, 3), torch.float32, 1, torch.channels_last),
        ((1, 24, 7, 7), (512, 24, 3, 3), torch.float32, 1, torch.channels_last),
        ((1, 192, 7, 7), (512, 96, 3, 3), torch.float32, 2, torch.channels_last),
        ((1, 96, 7, 7), (512, 96, 3, 3), torch.bfloat16, 1, torch.channels_last),
        ((1, 96, 7, 7), (512, 96, 3, 3), torch.float32, 1, torch.contiguous_format),
        ((2, 16, 220, 211), (90, 16, 1, 1), torch.float32, 1, torch.channels_last),
        ((2, 144, 220, 211), (96, 144, 1, 1), torch.float32, 1, torch.channels_last),
    ],
    ids=[
        "many pixels",
        "few weights",
        "groups",
        "bfloat16",
        "row-major",
        "kept memory",
        "many numbers for each of a large result",
    ],
)
def test_stays_a_convolution(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    dtype: torch.dtype,
    groups: int,
    memory_format: torch.memory_format,
) -> None:
    inputs = tensors(image, weight, False, torch.contiguous_format, dtype)
    inputs[0] = inputs[0].contiguous(memory_format=memory_format)
    padding = [weight[2] // 2] * 2
    graph = convolutions_to_products(graph_of(inputs, 1, padding, groups))
    assert calls(graph) == ["aten.convolution.default"]


def test_products_of_less_precision_do_not_replace_convolutions() -> None:
    inputs = tensors((1, 96, 7, 7), (512, 96, 3, 3), False, torch.contiguous_format, torch.float32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        graph = convolutions_to_products(graph_of(inputs, 1, [1, 1], 1))
    finally:
        torch.set_float32_matmul_precision(before)
    assert calls(graph) == ["aten.convolution.default"]
