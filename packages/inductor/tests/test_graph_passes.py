"""The passes on graphs, each on a small graph that it changes and on graphs that it must leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.split_bias_gradient import split_bias_gradient
from flambeau_inductor.graph_passes.unfuse_bias import unfuse_bias
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.split_reduction import choose_split
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import Prim
from flambeau_prims.spec import Spec
from flambeau_runtime import load

ADDMM = torch.ops.aten.addmm.default
CONVOLUTION = torch.ops.aten.convolution.default


def linear(
    read: Callable[[Builder, Value], Value],
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    bias_shape: tuple[int, ...] = (5,),
    shapes: tuple[tuple[int, ...], ...] | None = None,
) -> Graph:
    """addmm(bias, x, w) and what reads it."""
    shapes = shapes or (bias_shape, (3, 4), (4, 5))
    graph = Graph(
        [
            Value(name, Spec.of(shape, dtype=dtype, device=torch.device(device)))
            for name, shape in zip("bxw", shapes, strict=True)
        ]
    )
    shape = (shapes[1][0], shapes[2][1])
    product = Value("y", Spec.of(shape, dtype=dtype, device=torch.device(device)))
    product.producer = Node(ADDMM, tuple(graph.inputs), {}, (product,), "model.py:1")
    graph.nodes.append(product.producer)
    builder = Builder(graph.nodes, ["b", "x", "w", "y"])
    graph.outputs = [read(builder, product)]
    return graph


def tanh_of_a_view(builder: Builder, y: Value) -> Value:
    return builder.tanh(builder.reshape(y, (15,)))


def widened(builder: Builder, y: Value) -> Value:
    return builder.tanh(builder.cast(y, torch.float32))


def doubled(builder: Builder, y: Value) -> Value:
    return builder.mul(builder.cast(y, torch.float32), 2.0)


def names(graph: Graph) -> list[str]:
    return [node.op.name if isinstance(node.op, Prim) else str(node.op) for node in graph.nodes]


def test_the_bias_joins_the_kernel_that_reads_the_product() -> None:
    graph = unfuse_bias(linear(tanh_of_a_view))
    assert names(graph) == ["aten.mm.default", "unsqueeze", "expand", "add", "reshape", "tanh"]
    assert {node.where for node in graph.nodes[:4]} == {"model.py:1"}
    check_graph(graph)


def test_half_precision_is_added_in_float32() -> None:
    graph = unfuse_bias(linear(widened, dtype=torch.bfloat16))
    assert names(graph) == [
        "aten.mm.default", "cast", "unsqueeze", "expand", "cast", "add", "cast", "cast", "tanh",
    ]  # fmt: skip
    check_graph(graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_stay(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr("flambeau_inductor.graph_passes.unfuse_bias._is_plain", lambda node: True)
    read = tanh_of_a_view if dtype is torch.float32 else widened
    graph = linear(read, device="cpu", dtype=dtype)
    tensors = [torch.randn(shape).to(dtype) for shape in ((5,), (3, 4), (4, 5))]
    (before,) = run_graph(graph, tensors)
    changed = unfuse_bias(graph)
    assert names(changed)[0] == "aten.mm.default"
    torch.testing.assert_close(run_graph(changed, tensors)[0], before, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sum_is_as_near_to_float64_as_eager(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    b, x, w = (torch.randn(shape, dtype=torch.float64) for shape in ((64,), (256, 96), (96, 64)))
    tensors = [tensor.to(dtype) for tensor in (b, x / 96**0.5, w)]
    reference = torch.addmm(*(tensor.double() for tensor in tensors)) * 2

    def error(result: torch.Tensor) -> float:
        return float((result.double() - reference).square().mean().sqrt())

    eager = error(torch.addmm(*tensors).float() * 2)
    monkeypatch.setattr("flambeau_inductor.graph_passes.unfuse_bias._is_plain", lambda node: True)
    shapes = ((64,), (256, 96), (96, 64))
    graph = linear(doubled, device="cpu", dtype=dtype, shapes=shapes)
    (result,) = load(compile_graph(graph))(*tensors)
    assert "aten.mm.default" in names(graph)
    assert error(result) <= 1.1 * eager


def convolved(dims: int, dtype: torch.dtype, device: str, transposed: bool = False) -> Graph:
    """relu(convolution(x, w, bias)), in channels-last layout if there are two dims."""
    place = {"dtype": dtype, "device": torch.device(device)}
    shapes = {"x": (2, 4, *[5] * dims), "w": (4, 4, *[3] * dims), "b": (4,)}
    graph = Graph([Value(name, Spec.of(shape, **place)) for name, shape in shapes.items()])
    shape = (2, 4, *[7 if transposed else 3] * dims)
    stride = None if dims != 2 else (shape[1] * shape[2] * shape[3], 1, 4 * shape[3], 4)
    out = Value("y", Spec.of(shape, stride=stride, **place))
    settings = ([1] * dims, [0] * dims, [1] * dims, transposed, [0] * dims, 1)
    out.producer = Node(CONVOLUTION, (*graph.inputs, *settings), {}, (out,), "model.py:1")
    graph.nodes.append(out.producer)
    builder = Builder(graph.nodes, ["x", "w", "b", "y"])
    graph.outputs = [builder.maximum(builder.cast(out, torch.float32), 0.0)]
    return graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dims", "transposed"), [(1, False), (2, False), (2, True), (3, False)])
def test_the_bias_of_a_convolution_joins_the_kernel_behind_it(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, dims: int, transposed: bool
) -> None:
    graph = unfuse_bias(convolved(dims, dtype, "cuda", transposed))
    assert names(graph)[0] == "aten.convolution.default" and "add" in names(graph)
    assert graph.nodes[0].args[2] is None
    assert (
        graph.nodes[0].outputs[0].spec
        == convolved(dims, dtype, "cuda", transposed).nodes[0].outputs[0].spec
    )
    check_graph(graph)
    assert names(unfuse_bias(convolved(dims, dtype, "cpu")))[1] != "add"
    plain = convolved(dims, dtype, "cpu", transposed)
    tensors = [torch.randn(value.spec.shape).to(dtype) for value in plain.inputs]
    (before,) = run_graph(plain, tensors)
    monkeypatch.setattr(
        "flambeau_inductor.graph_passes.unfuse_bias.has_separate_bias",
        lambda node: node.op is CONVOLUTION,
    )
    changed = unfuse_bias(plain)
    assert changed.nodes[0].args[2] is None
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(
        run_graph(changed, tensors)[0], before, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(lambda: linear(tanh_of_a_view, device="cpu"), id="on a CPU"),
        pytest.param(lambda: linear(tanh_of_a_view, dtype=torch.float64), id="double"),
        pytest.param(lambda: linear(tanh_of_a_view, bias_shape=(3, 5)), id="not a row"),
        pytest.param(lambda: linear(lambda b, y: y), id="returned"),
        pytest.param(lambda: linear(lambda b, y: b.reshape(y, (15,))), id="a view returned"),
    ],
)
def test_other_products_stay(graph: Callable[[], Graph]) -> None:
    assert "aten.addmm.default" in names(unfuse_bias(graph()))


@pytest.mark.parametrize(
    ("shape", "dims", "split"),
    [
        ((8, 768), (1,), False),
        ((1, 4096), (1,), False),
        ((1, 1 << 20), (1,), True),
        ((1 << 20, 8), (0,), True),
        ((100_000, 768), (1,), False),
    ],
)
def test_rows_that_a_program_holds_are_not_split(
    shape: tuple[int, int], dims: tuple[int, ...], split: bool
) -> None:
    x = Value("x", Spec.of(shape, device=torch.device("cuda")))
    builder = Builder([], ["x"])
    node = builder.sum(x, dims).producer
    assert choose_split(node, dims, InductorOptions()).splits == split


# ---------------------------------------------------------------- gradients of biases


def convolution_backward(
    device: str, dtype: torch.dtype, mask: tuple[bool, bool, bool], transposed: bool = False
) -> tuple[Graph, list[torch.Tensor]]:
    """The backward of a convolution with 5 filters, and inputs."""
    weight = (3, 5, 2, 2) if transposed else (5, 3, 2, 2)
    shapes = ((2, 5, 7, 6), (2, 3, 6, 5) if transposed else (2, 3, 8, 7), weight)
    tensors = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    geometry = ((5,), (1, 1), (0, 0), (1, 1), transposed, (0, 0), 1, list(mask))
    specs = [Spec.of(shape, dtype=dtype, device=torch.device(device)) for shape in shapes]
    graph = Graph([Value(name, spec) for name, spec in zip("gxw", specs, strict=True)])
    bias = Spec.of((5,), dtype=dtype, device=torch.device(device))
    made = (Value("gx", specs[1]), Value("gw", specs[2]), Value("gb", bias))
    outputs = tuple(out if on else None for out, on in zip(made, mask, strict=True))
    node = Node(BACKWARD, (*graph.inputs, *geometry), {}, outputs, "model.py:1")
    for out in outputs:
        if out is not None:
            out.producer = node
    graph.nodes.append(node)
    graph.outputs = [out for out in outputs if out is not None]
    return graph, tensors


BACKWARD = torch.ops.aten.convolution_backward.default


def test_the_gradient_of_a_bias_is_a_sum_of_our_own() -> None:
    graph, _ = convolution_backward("cuda", torch.float32, (True, True, True))
    graph = split_bias_gradient(graph)
    assert names(graph) == ["aten.convolution_backward.default", "sum"]
    assert graph.nodes[0].args[-1] == [True, True, False]
    assert graph.nodes[0].outputs[2] is None
    check_graph(graph)


def test_nothing_is_left_for_the_library_where_only_the_bias_counts() -> None:
    graph, _ = convolution_backward("cuda", torch.bfloat16, (False, False, True))
    graph = split_bias_gradient(graph)
    assert names(graph) == ["cast", "sum", "cast"]
    check_graph(graph)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_other_convolutions_stay(device: str) -> None:
    mask = (True, True, device == "cpu")
    graph, _ = convolution_backward(device, torch.float32, mask)
    assert names(split_bias_gradient(graph)) == ["aten.convolution_backward.default"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_stay(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, transposed: bool
) -> None:
    monkeypatch.setattr(
        "flambeau_inductor.graph_passes.split_bias_gradient._has_bias",
        lambda node: node.op is BACKWARD,
    )
    graph, tensors = convolution_backward("cpu", dtype, (True, True, True), transposed)
    before = run_graph(graph, tensors)
    after = run_graph(split_bias_gradient(graph), tensors)
    exact = tensors[0].double().sum((0, 2, 3))
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    error = (before[2].double() - exact).abs().max()
    assert (after[2].double() - exact).abs().max() <= 2 * error + 1e-5
