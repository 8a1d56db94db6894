"""Depthwise convolutions in kernels of our own: values, layouts, what is computed with them, and
what stays a convolution.
"""

from __future__ import annotations

import platform

import pytest
import torch
from torch.nn import functional as F

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.depthwise_convolutions import compute_depthwise_convolutions
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.pipeline import GRAPH_PASSES, run_passes, schedule_graph
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import load
from flambeau_runtime.build.isa import detect

CONVOLUTION = torch.ops.aten.convolution.default
OPTIONS = InductorOptions(debug_checks=True)


pytestmark = pytest.mark.skipif(
    platform.machine() == "x86_64" and detect() == "baseline", reason="the CPU has no FMA"
)


def images(*shape: int) -> torch.Tensor:
    """Channels-last images."""
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def graph_of(
    inputs: list[torch.Tensor], stride: int, padding: list[int], dilation: int, groups: int
) -> Graph:
    """A convolution of the inputs."""
    values = [
        Value(name, Spec.of(tensor.shape, dtype=tensor.dtype).replace(stride=tensor.stride()))
        for name, tensor in zip("xwb", inputs, strict=False)
    ]
    graph = Graph(list(values))
    x, w, *bias = values
    rest = ([stride] * 2, padding, [dilation] * 2, False, [0, 0], groups)
    args = (x, w, bias[0] if bias else None, *rest)
    specs = (x.spec, w.spec, bias[0].spec if bias else None)
    out = Value("y", infer(CONVOLUTION, (*specs, *rest), {}))
    out.producer = Node(CONVOLUTION, args, {}, (out,), "model.py:1")
    graph.nodes.append(out.producer)
    graph.outputs = [out]
    return graph


def is_left(graph: Graph) -> bool:
    """Whether the convolution is still a call of ATen."""
    return any(node.op is CONVOLUTION for node in graph.nodes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("image", "taps", "stride", "padding", "dilation"),
    [
        ((2, 32, 14, 14), (3, 3), 1, [1, 1], 1),
        ((1, 17, 9, 31), (3, 3), 1, [1, 1], 1),
        ((3, 300, 11, 10), (3, 3), 1, [1, 1], 1),
        ((2, 48, 23, 18), (3, 3), 2, [1, 1], 1),
        ((2, 16, 20, 21), (2, 3), 1, [0, 2], 1),
        ((1, 24, 13, 12), (3, 1), 1, [1, 0], 1),
        ((1, 24, 30, 29), (1, 3), 2, [0, 1], 1),
        ((1, 16, 19, 17), (3, 3), 1, [2, 2], 2),
        ((1, 16, 12, 40), (3, 3), 1, [3, 3], 1),
        ((1, 16, 10, 10), (3, 3), 1, [0, 0], 1),
    ],
)
def test_values_and_layout(
    image: tuple[int, ...], taps: tuple[int, int], stride: int, padding: list[int], dilation: int,
    bias: bool,
) -> None:  # fmt: skip
    channels = image[1]
    inputs = [images(*image), torch.randn(channels, 1, *taps)] + [torch.randn(channels)] * bias
    graph = compute_depthwise_convolutions(graph_of(inputs, stride, padding, dilation, channels))
    check_graph(graph)
    assert not is_left(graph)
    (result,) = load(compile_graph(graph, OPTIONS))(*inputs)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": channels}
    expected = torch.conv2d(*inputs, **settings)
    exact = torch.conv2d(*(one.double() for one in inputs), **settings)
    assert result.stride() == expected.stride()
    assert (result - exact).abs().max() <= 2 * (expected - exact).abs().max() + 1e-6


def test_not_a_number_reaches_its_neighbours() -> None:
    x, w = images(1, 16, 12, 12), torch.randn(16, 1, 3, 3)
    x[0, 3, 0, 5], x[0, 4, 6, 6], x[0, 5, 11, 11] = torch.nan, torch.inf, torch.nan
    graph = compute_depthwise_convolutions(graph_of([x, w], 1, [1, 1], 1, 16))
    (result,) = load(compile_graph(graph, OPTIONS))(x, w)
    expected = torch.conv2d(x, w, padding=1, groups=16)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())


def test_what_follows_is_in_the_kernel() -> None:
    """A batch norm and an activation behind the convolution make no kernel of their own."""
    x, w, scale = images(2, 32, 20, 20), torch.randn(32, 1, 3, 3), torch.randn(32)
    graph = graph_of([x, w], 1, [1, 1], 1, 32)
    factor = Value("s", Spec.of((32,)))
    graph.inputs.append(factor)
    b = Builder(graph.nodes, ("x", "w", "y", "s"))
    (y,) = graph.outputs
    scaled = b.mul(y, b.expand(b.unsqueeze(b.unsqueeze(factor, 1), 2), y.spec.shape))
    graph.outputs = [b.minimum(b.maximum(scaled, 0.0), 6.0)]
    schedule = schedule_graph(graph, OPTIONS)
    assert len(schedule.groups) == 2  # the order of the weights, and all else
    (result,) = load(compile_graph(graph, OPTIONS))(x, w, scale)
    exact = F.relu6(
        torch.conv2d(x.double(), w.double(), padding=1, groups=32) * scale[:, None, None]
    )
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "weight", "groups"),
    [
        (images(2, 32, 14, 14), (32, 1, 5, 5), 32),
        (images(2, 32, 14, 14), (64, 1, 3, 3), 32),
        (images(2, 32, 14, 14), (32, 32, 3, 3), 1),
        (images(2, 32, 14, 14), (32, 2, 3, 3), 16),
        (images(2, 8, 14, 14), (8, 1, 3, 3), 8),
        (images(2, 32, 7, 7), (32, 1, 3, 3), 32),
        (torch.randn(2, 32, 14, 14), (32, 1, 3, 3), 32),
        (images(2, 32, 14, 14).bfloat16(), (32, 1, 3, 3), 32),
    ],
    ids=[
        "many taps", "two results a channel", "one group", "two channels a group", "few channels",
        "small image", "row-major", "bfloat16",
    ],
)  # fmt: skip
def test_stays_a_convolution(x: torch.Tensor, weight: tuple[int, ...], groups: int) -> None:
    w = torch.randn(weight, dtype=x.dtype)
    graph = graph_of([x, w], 1, [weight[-1] // 2] * 2, 1, groups)
    assert is_left(compute_depthwise_convolutions(graph))


def test_strict_numerics_leave_it_to_aten() -> None:
    x, w = images(1, 32, 14, 14), torch.randn(32, 1, 3, 3)
    for numerics, left in (("fast", False), ("strict", True)):
        graph = graph_of([x, w], 1, [1, 1], 1, 32)
        schedule = schedule_graph(graph, InductorOptions(numerics=numerics))  # type: ignore[arg-type]
        assert any("convolution" in str(group) for group in schedule.groups) == left
    assert "compute_depthwise_convolutions" in dict(GRAPH_PASSES)
    assert not is_left(run_passes(graph_of([x, w], 1, [1, 1], 1, 32), OPTIONS, GRAPH_PASSES))
