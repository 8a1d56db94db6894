"""Max pooling: exact, ties, NaN and the places of padding included; gradients in eager's order of
summation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

from flambeau_prims.decompose import decompose
from flambeau_prims.decompositions import max_pool as pooling
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import spec_of

aten = torch.ops.aten
max_pool = aten.max_pool2d_with_indices.default
max_pool_backward = aten.max_pool2d_with_indices_backward.default

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int8,
)


def windows(make: Make) -> tuple[Any, ...]:
    """Random arguments of max_pool2d."""
    kernel = [make.integer(1, 5), make.integer(1, 5)]
    stride = [[], [make.integer(1, 4), make.integer(1, 5)], [2]][make.integer(0, 3)]
    padding = [make.integer(0, size // 2 + 1) for size in kernel]
    dilation = [[1], [1], [make.integer(1, 4), make.integer(1, 3)]][make.integer(0, 3)]
    return kernel, stride, padding, dilation, make.integer(0, 5) < 2


def images(
    seed: int, dtype: torch.dtype, count: int
) -> Iterator[tuple[torch.Tensor, tuple[Any, ...]]]:
    """Random images and windows that fit them."""
    make = Make(seed, dtype, special=True)
    while count:
        shape = [make.integer(0, 3), make.integer(1, 4), make.integer(1, 10), make.integer(1, 10)]
        x = make(*shape[make.integer(0, 8) == 0 :])
        if dtype.is_floating_point:
            x = x + 0.0  # no -0.0: of zeros that tie, torch.maximum takes either
        if not x.numel() and x.ndim == 3:
            continue
        if x.ndim == 4 and make.integer(0, 2):
            x = x.contiguous(memory_format=torch.channels_last)
        args = windows(make)
        try:
            max_pool(x, *args)
        except RuntimeError:
            continue  # a window larger than the image
        count -= 1
        yield x, args


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows(dtype: torch.dtype) -> None:
    for x, args in images(0, dtype, 25):
        check(max_pool, x, *args, exact=True)


def test_elements_that_tie() -> None:
    for value in (0.0, float("-inf"), float("inf"), float("nan")):
        x = torch.full((1, 2, 5, 6), value)
        check(max_pool, x, [3, 3], [2, 2], [1, 1], exact=True)
        check(max_pool, x, [2, 2], [1, 1], [1, 1], [2, 3], True, exact=True)
    least = torch.full((1, 1, 4, 4), torch.iinfo(torch.int32).min, dtype=torch.int32)
    check(max_pool, least, [3, 3], [1, 1], [1, 1])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_gradients(dtype: torch.dtype) -> None:
    make = Make(1, dtype)
    for x, args in images(1, dtype, 25):
        values, indices = max_pool(x, *args)
        for grad in (make(*values.shape), torch.empty_like(values).copy_(make(*values.shape))):
            call = (grad, x, *args, indices)
            graph, _ = decomposed(max_pool_backward, call, {}, flat(max_pool_backward(*call)))
            if is_decomposed(graph):
                check(max_pool_backward, *call, exact=dtype is torch.float32)


def test_where_gradients_are_gathered() -> None:
    """On a CPU: all but those whose windows overlap along contiguous rows."""
    x = torch.randn(2, 3, 8, 8)
    channels_last = x.contiguous(memory_format=torch.channels_last)
    for image, window, gathered in (
        (channels_last, ([3, 3], [2, 2], [1, 1]), True),
        (x, ([3, 3], [2, 2], [1, 1]), False),
        (x, ([3, 3], [1, 1], [1, 1]), False),
        (channels_last, ([3, 3], [1, 1], [1, 1]), True),
        (x, ([2, 2], [2, 2], [0, 0]), True),
    ):
        values, indices = max_pool(image, *window)
        call = (torch.randn_like(values), image, *window, [1, 1], False, indices)
        graph, _ = decomposed(max_pool_backward, call, {}, flat(max_pool_backward(*call)))
        assert is_decomposed(graph) == gathered


def test_large_windows_stay_with_aten() -> None:
    x = torch.randn(1, 2, 12, 12)
    for call in ((x, [6, 6]), (x, [5, 6], [1, 1])):
        graph, _ = decomposed(max_pool, call, {}, flat(max_pool(*call)))
        assert not is_decomposed(graph)


def test_volumes() -> None:
    forward = aten.max_pool3d_with_indices.default
    backward = aten.max_pool3d_with_indices_backward.default
    for dtype in (torch.float32, torch.bfloat16):
        make = Make(2, dtype, special=True)
        for args in (
            ([2, 2, 2],),
            ([3, 3, 3], [1, 1, 1], [1, 1, 1]),
            ([2, 3, 1], [2, 1, 1], [1, 1, 0], [1, 2, 1], True),
        ):
            x = make(2, 3, 4, 5, 6) + 0.0
            check(forward, x, *args, exact=True)
            values, indices = forward(x, *args)
            window = (*args, *([], [0], [1], False)[len(args) - 1 :])
            call = (Make(3, dtype)(*values.shape), x, *window, indices)
            if len(args) == 1:
                check(backward, *call)
            x = x.contiguous(memory_format=torch.channels_last_3d)
            check(backward, call[0], x, *window, indices)


def test_adaptive() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        make = Make(4, dtype, special=True)
        for size in ([1, 1], [2, 3], [4, 6], [1, 6]):
            for x in (make(2, 3, 4, 6), make(3, 8, 12), make(2, 2, 12, 18)):
                x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
                x = x + 0.0
                check(aten.adaptive_max_pool2d.default, x, size, exact=True)
                values, indices = aten.adaptive_max_pool2d.default(x, size)
                grad = torch.empty_like(values).copy_(Make(5, dtype)(*values.shape))
                check(aten.adaptive_max_pool2d_backward.default, grad, x, indices)
        volume = make(2, 3, 4, 6, 8) + 0.0
        for size in ([1, 1, 1], [2, 3, 2]):
            check(aten.adaptive_max_pool3d.default, volume, size, exact=True)
            values, indices = aten.adaptive_max_pool3d.default(volume, size)
            grad = Make(6, dtype)(*values.shape).contiguous()
            check(aten.adaptive_max_pool3d_backward.default, grad, volume, indices)
    uneven = torch.randn(1, 1, 5, 5)
    graph, _ = decomposed(
        aten.adaptive_max_pool2d.default,
        (uneven, [2, 2]),
        {},
        flat(aten.adaptive_max_pool2d(uneven, [2, 2])),
    )
    assert not is_decomposed(graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_in_the_graph_of_its_forward(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares the numbers of taps; ties and windows in the padding included."""
    monkeypatch.setattr(pooling, "_gather_pays", lambda result, windows: True)
    forward, backward = max_pool, max_pool_backward
    for args in (
        ([3, 3], [2, 2], [1, 1], [1, 1], False),
        ([3, 2], [2, 1], [1, 0], [1, 1], True),
        ([2, 3], [3, 5], [0, 1], [1, 1], False),
        ([3, 3], [1, 2], [1, 1], [2, 2], False),
    ):
        x = torch.randint(-2, 3, (2, 3, 9, 11)).to(dtype)
        for image in (x, x.contiguous(memory_format=torch.channels_last)):
            values, indices = forward(image, *args)
            grad = torch.empty_like(values).copy_(torch.randn(values.shape))
            wanted = backward(grad, image, *args, indices)
            inputs = [Value("x", spec_of(image)), Value("g", spec_of(grad))]
            pool = Node(forward, (inputs[0], *args), {}, (), "")
            pool.outputs = (Value("v", spec_of(values), pool), Value("i", spec_of(indices), pool))
            part = Node(backward, (inputs[1], inputs[0], *args, pool.outputs[1]), {}, (), "")
            part.outputs = (Value("d", spec_of(wanted), part),)
            outputs = [*pool.outputs, *part.outputs]
            graph = decompose(Graph(inputs, [pool, part], outputs))
            ours = run_graph(graph, [image, grad])
            assert torch.equal(ours[0], values) and torch.equal(ours[1], indices)
            exact = backward(grad.double(), image.double(), *args, indices)
            error = 1e-5 if dtype is torch.float32 else 2e-2
            torch.testing.assert_close(ours[2].double(), exact, rtol=error, atol=error)
