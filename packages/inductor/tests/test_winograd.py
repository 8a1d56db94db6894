"""3x3 convolutions by Winograd's filtering: values beside float64, layouts, numbers that are not
finite, gradients of images, and what stays a call of the library.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import check_graph
from flambeau_inductor.graph_passes.convolution_gradients import separate_convolution_gradients
from flambeau_inductor.options import InductorOptions
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.build.isa import LEVELS, detect
from flambeau_runtime.program import Extern

aten = torch.ops.aten
OPTIONS = InductorOptions(debug_checks=True)
WINOGRAD, GRADIENT = "cpu_winograd_convolution", "cpu_winograd_gradient"


def images(*shape: int) -> torch.Tensor:
    """Channels-last images."""
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def graph_of(op: Any, tensors: list[torch.Tensor | None], *settings: Any) -> Graph:
    """One call on inputs."""
    values = [
        None if tensor is None
        else Value(f"x{n}", Spec.of(tensor.shape, dtype=tensor.dtype).replace(
            stride=tensor.stride()))
        for n, tensor in enumerate(tensors)
    ]  # fmt: skip
    specs = infer(op, (*(value and value.spec for value in values), *settings), {})
    specs = specs if isinstance(specs, tuple) else (specs,)
    node = Node(op, (*values, *settings), {}, (), "model.py:1")
    node.outputs = tuple(spec and Value(f"y{n}", spec, node) for n, spec in enumerate(specs))
    graph = Graph([value for value in values if value is not None], [node])
    graph.outputs = [out for out in node.outputs if out is not None]
    return graph


def convolution(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, padding: int | list[int] = 1,
    transposed: bool = False,
) -> Graph:  # fmt: skip
    """A convolution of stride 1."""
    margins = [padding] * 2 if isinstance(padding, int) else padding
    settings = ([1, 1], margins, [1, 1], transposed, [0, 0], 1)
    return graph_of(aten.convolution.default, [x, w, b], *settings)


def kernels_of(graph: Graph, options: InductorOptions = OPTIONS) -> list[str]:
    """The names of a graph's kernels."""
    return [kernel.name for kernel in compile_graph(graph, options).kernels]


def check(graph: Graph, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The results: about as near to the exact ones as the library's, and in its layouts."""
    program = compile_graph(graph, OPTIONS)
    assert WINOGRAD in [kernel.name for kernel in program.kernels]
    results = load(program)(*tensors)
    expected = run_graph(graph, list(tensors))
    exact = run_graph(graph, [tensor.double() for tensor in tensors])
    for result, wanted, best in zip(results, expected, exact, strict=True):
        assert result.stride() == wanted.stride()
        assert (result - best).abs().max() <= 2 * (wanted - best).abs().max() + 1e-6
    return list(results)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("image", "channels", "padding"),
    [
        ((2, 32, 12, 12), 32, 1),
        ((3, 64, 13, 17), 96, 1),
        ((1, 96, 31, 8), 32, [0, 2]),
        ((1, 288, 14, 15), 64, 2),
        ((9, 32, 9, 7), 64, 0),
        ((40, 32, 5, 4), 32, 1),
    ],
)
def test_values_and_layout(
    image: tuple[int, ...], channels: int, padding: int | list[int], bias: bool, transposed: bool
) -> None:
    shape = (image[1], channels) if transposed else (channels, image[1])
    tensors = [images(*image), torch.randn(*shape, 3, 3)] + [torch.randn(channels)] * bias
    check(convolution(*tensors, padding=padding, transposed=transposed), *tensors)


def test_one_thread_and_many_give_the_same_bits() -> None:
    x, w = images(3, 64, 21, 22), torch.randn(64, 64, 3, 3)
    graph = convolution(x, w)
    results = [
        load(compile_graph(graph, InductorOptions(threads=threads)))(x, w)[0]
        for threads in (1, 2, 5)
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("isa", LEVELS)
def test_isa_levels(isa: str) -> None:
    if LEVELS.index(isa) < LEVELS.index(detect()):
        pytest.skip(f"the CPU has no {isa}")
    x, w, b = images(2, 32, 15, 18), torch.randn(64, 32, 3, 3), torch.randn(64)
    program = compile_graph(convolution(x, w, b), OPTIONS)
    (result,) = load(program, RuntimeOptions(isa=isa))(x, w, b)
    exact = torch.conv2d(x.double(), w.double(), b.double(), padding=1)
    error = (torch.conv2d(x, w, b, padding=1) - exact).abs().max()
    assert (result - exact).abs().max() <= 2 * error + 1e-6
    gradient = images(2, 64, 15, 18)
    program = compile_graph(backward(x, w, gradient, [False, True, False]), OPTIONS)
    (result,) = load(program, RuntimeOptions(isa=isa))(gradient, x, w)
    settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    exact = aten.convolution_backward(gradient.double(), x.double(), w.double(), *settings)[1]
    torch.testing.assert_close(result, exact.float(), rtol=1e-4, atol=1e-4)


def test_strides_of_operands() -> None:
    """Channels of a wider image, and weights in channels-last order."""
    x = images(2, 64, 16, 15)[:, 16:48]
    w = images(64, 32, 3, 3)
    check(convolution(x, w), x, w)
    w = torch.randn(3, 3, 64, 32).permute(3, 2, 0, 1)
    x = images(2, 32, 16, 15)
    check(convolution(x, w, transposed=True), x, w)


@pytest.mark.parametrize("transposed", [False, True])
def test_not_a_number_and_infinity_reach_their_neighbours_only(transposed: bool) -> None:
    x, w, b = images(2, 32, 12, 13), torch.randn(32, 32, 3, 3), torch.randn(32)
    x[0, 3, 0, 5], x[0, 4, 6, 6], x[1, 5, 11, 12] = torch.nan, torch.inf, torch.nan
    w[7, 9, 1, 2], b[3] = torch.inf, torch.nan
    graph = convolution(x, w, b, transposed=transposed)
    assert WINOGRAD in kernels_of(graph)
    (result,) = load(compile_graph(graph, OPTIONS))(x, w, b)
    (expected,) = run_graph(graph, [x, w, b])
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_sums_that_overflow_and_those_beside_them() -> None:
    x, w = images(2, 32, 12, 13), torch.randn(32, 32, 3, 3)
    x[0, 3, 0, 5], x[1, 5, 11, 12] = 3e38, -2e38
    graph = convolution(x, w)
    (result,) = load(compile_graph(graph, OPTIONS))(x, w)
    exact = torch.conv2d(x.double(), w.double(), padding=1).float()
    assert exact.isinf().any()
    assert torch.equal(result.isinf(), exact.isinf())
    large = exact.abs() > 1e30
    torch.testing.assert_close(result[large], exact[large], rtol=1e-4, atol=0)


def backward(
    x: torch.Tensor, w: torch.Tensor, gradient: torch.Tensor, mask: list[bool], padding: int = 1
) -> Graph:
    """The backward pass of a convolution."""
    settings = ([1, 1], [padding] * 2, [1, 1], False, [0, 0], 1, mask)
    tensors = [gradient, x, w]
    return graph_of(aten.convolution_backward.default, tensors, [w.shape[0]], *settings)


@pytest.mark.parametrize(
    ("shape", "channels", "padding"),
    [
        ((2, 32, 14, 13), 64, 1),
        ((1, 96, 21, 8), 32, 2),
        ((3, 64, 12, 11), 160, 0),
        ((24, 32, 13, 16), 32, 1),  # in several shares
    ],
)
def test_gradients(shape: tuple[int, ...], channels: int, padding: int) -> None:
    n, _, rows, columns = shape
    more = 2 * padding - 2
    x, w = images(*shape), torch.randn(channels, shape[1], 3, 3)
    gradient = images(n, channels, rows + more, columns + more)
    graph = backward(x, w, gradient, [True, True, True], padding)
    tensors = [gradient, x, w]
    before = run_graph(graph, tensors)
    exact = run_graph(graph, [one.double() for one in tensors])
    graph = separate_convolution_gradients(graph)
    check_graph(graph)
    assert [getattr(node.op, "name", str)() if isinstance(node.op, torch._ops.OpOverload)
            else node.op.name for node in graph.nodes] == [
        "aten::convolution", "sum", "aten::convolution_backward"
    ]  # fmt: skip
    for one, two in zip(before, run_graph(graph, tensors), strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-3)
    program = compile_graph(graph, OPTIONS)
    assert {WINOGRAD, GRADIENT} <= {kernel.name for kernel in program.kernels}
    assert not [step for step in program.steps if isinstance(step, Extern)]
    for result, wanted, best in zip(load(program)(*tensors), before, exact, strict=True):
        assert result.stride() == wanted.stride()
        assert (result - best).abs().max() <= 2 * (wanted - best).abs().max() + 1e-6


def test_gradients_of_weights_in_another_order() -> None:
    x, w, gradient = images(2, 32, 14, 13), images(64, 32, 3, 3), images(2, 64, 14, 13)
    graph = backward(x, w, gradient, [False, True, False])
    (result,) = load(compile_graph(graph, OPTIONS))(gradient, x, w)
    (expected,) = run_graph(graph, [gradient, x, w])
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_weights_from_numbers_that_are_not_finite() -> None:
    """A pixel in a corner takes part in four of the nine sums."""
    x, w, gradient = images(1, 64, 14, 13), torch.randn(64, 64, 3, 3), images(1, 64, 14, 13)
    x[0, 3, 0, 0], x[0, 40, 13, 12], gradient[0, 5, 7, 6] = torch.inf, torch.nan, torch.inf
    graph = backward(x, w, gradient, [False, True, False])
    (result,) = load(compile_graph(graph, OPTIONS))(gradient, x, w)
    (expected,) = run_graph(graph, [gradient, x, w])
    assert not expected[0, 3].isfinite().all() and expected[0, 3].isfinite().any()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_gradients_on_one_thread_and_many_have_the_same_bits() -> None:
    x, w, gradient = images(9, 32, 20, 21), torch.randn(64, 32, 3, 3), images(9, 64, 20, 21)
    graph = backward(x, w, gradient, [False, True, False])
    results = [
        load(compile_graph(graph, InductorOptions(threads=threads)))(gradient, x, w)[0]
        for threads in (1, 2, 5)
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_a_gradient_of_the_image_alone_leaves_no_call() -> None:
    x, w, gradient = images(2, 32, 14, 13), torch.randn(64, 32, 3, 3), images(2, 64, 14, 13)
    settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    graph = graph_of(aten.convolution_backward.default, [gradient, x, w], *settings)
    graph = separate_convolution_gradients(graph)
    check_graph(graph)
    assert [node.op for node in graph.nodes] == [aten.convolution.default]


def test_weights_that_do_not_change_are_transformed_once() -> None:
    x, w = images(2, 32, 14, 13), torch.randn(64, 32, 3, 3)
    graph = convolution(x, w)
    graph.frozen = frozenset({graph.inputs[1]})
    program = compile_graph(graph, OPTIONS)
    assert program.prepared is not None
    kernels = [step.kernel for step in program.steps if hasattr(step, "kernel")]
    assert kernels == [WINOGRAD]
    (result,) = load(program)(x, w)
    torch.testing.assert_close(result, torch.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "w", "settings"),
    [
        (images(2, 32, 14, 14), torch.randn(32, 32, 3, 3), ([2, 2], [1, 1], [1, 1])),
        (images(2, 32, 14, 14), torch.randn(32, 32, 3, 3), ([1, 1], [2, 2], [2, 2])),
        (images(2, 32, 14, 14), torch.randn(32, 32, 3, 3), ([1, 1], [3, 3], [1, 1])),
        (images(2, 32, 14, 14), torch.randn(32, 32, 5, 5), ([1, 1], [2, 2], [1, 1])),
        (images(2, 48, 14, 14), torch.randn(32, 48, 3, 3), ([1, 1], [1, 1], [1, 1])),
        (images(2, 32, 14, 14), torch.randn(3, 32, 3, 3), ([1, 1], [1, 1], [1, 1])),
        (images(1, 32, 4, 4), torch.randn(32, 32, 3, 3), ([1, 1], [1, 1], [1, 1])),
        (images(50, 32, 1, 1), torch.randn(32, 32, 3, 3), ([1, 1], [1, 1], [1, 1])),
        (images(0, 32, 14, 14), torch.randn(32, 32, 3, 3), ([1, 1], [1, 1], [1, 1])),
        (torch.randn(2, 32, 14, 14), torch.randn(32, 32, 3, 3), ([1, 1], [1, 1], [1, 1])),
        (images(2, 32, 14, 14).double(), torch.randn(32, 32, 3, 3).double(),
         ([1, 1], [1, 1], [1, 1])),
        (images(2, 32, 14, 14).bfloat16(), torch.randn(32, 32, 3, 3).bfloat16(),
         ([1, 1], [1, 1], [1, 1])),
    ],
)  # fmt: skip
def test_what_stays_a_call_of_the_library(
    x: torch.Tensor, w: torch.Tensor, settings: tuple[list[int], ...]
) -> None:
    rest = (*settings, False, [0, 0], 1)
    graph = graph_of(aten.convolution.default, [x, w, None], *rest)
    assert WINOGRAD not in kernels_of(graph)


def test_strict_numerics_call_the_library() -> None:
    x, w = images(2, 32, 14, 14), torch.randn(32, 32, 3, 3)
    graph = convolution(x, w)
    assert WINOGRAD in kernels_of(graph)
    assert WINOGRAD not in kernels_of(graph, InductorOptions(numerics="strict"))
