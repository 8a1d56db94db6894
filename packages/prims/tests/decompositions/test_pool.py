"""Average pooling and nearest-neighbour resampling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

from flambeau_prims.decompositions import adaptive

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def images(make: Make, *shape: int) -> list[torch.Tensor]:
    x = make(*shape)
    return [x.contiguous(), x.contiguous(memory_format=torch.channels_last)]


def test_adaptive() -> None:
    for dtype in FLOATS:
        make = Make(0, dtype)
        for size in ([1, 1], [2, 3], [4, 6]):
            for x in images(make, 2, 3, 4, 6):
                check(aten._adaptive_avg_pool2d.default, x, size)
                grad = make(2, 3, *size).contiguous()
                check(aten._adaptive_avg_pool2d_backward.default, grad, x.contiguous())


def windows(make: Make) -> tuple[Any, ...]:
    """Random arguments of avg_pool2d."""
    kernel = [make.integer(1, 5), make.integer(1, 5)]
    stride = [[], [make.integer(1, 4), make.integer(1, 5)], [2]][make.integer(0, 3)]
    padding = [make.integer(0, size // 2 + 1) for size in kernel]
    divisor = (None, None, 3)[make.integer(0, 3)]
    return kernel, stride, padding, make.integer(0, 2) == 0, make.integer(0, 2) == 0, divisor


def test_windows() -> None:
    """Random windows, ceil mode and padding that counts or does not; gradients."""
    for dtype in FLOATS:
        make = Make(1, dtype)
        for _ in range(20):
            shape = [
                make.integer(0, 3),
                make.integer(1, 4),
                make.integer(4, 10),
                make.integer(4, 10),
            ]
            args = windows(make)
            for x in images(make, *shape):
                check(aten.avg_pool2d.default, x, *args, near=9.0)
                values = aten.avg_pool2d.default(x, *args)
                grad = torch.empty_like(values).copy_(make(*values.shape))
                check(aten.avg_pool2d_backward.default, grad, x, *args, near=4.0)


def test_volumes() -> None:
    for dtype in (torch.float32, torch.float64):
        make = Make(2, dtype)
        for args in (
            ([2, 2, 2], []),
            ([3, 3, 3], [2, 2, 2], [1, 1, 0], True, False),
            ([2, 3, 1], [1, 1, 1], [1, 1, 0]),
        ):
            x = make(2, 3, 5, 6, 7)
            check(aten.avg_pool3d.default, x, *args, near=9.0)
            grad = make(*aten.avg_pool3d.default(x, *args).shape)
            window = (*args, *([0], False, True)[len(args) - 2 :], None)
            check(aten.avg_pool3d_backward.default, grad, x, *window, near=4.0)


def test_what_stays_with_aten() -> None:
    wide = Make(3, torch.float32)(1, 2, 60, 60)
    for op, args in (
        (aten._adaptive_avg_pool2d.default, (wide, [2, 7])),
        (aten.avg_pool2d.default, (wide, [29, 2])),
    ):
        graph, _ = decomposed(op, args, {}, flat(op(*args)))
        assert not is_decomposed(graph)


def test_nearest() -> None:
    for dtype in FLOATS:
        make = Make(4, dtype)
        for x in images(make, 2, 3, 4, 5):
            check(aten.upsample_nearest2d.default, x, [8, 15], exact=True)
            check(aten.upsample_nearest2d.default, x, [8, 10], 2.0, 2.0, exact=True)
            check(aten.upsample_nearest2d.default, x, [7, 9], exact=True)
            check(aten.upsample_nearest2d.default, x, [2, 3], exact=True)
            check(aten.upsample_nearest2d.default, x, [6, 7], 1.5, 1.5, exact=True)
        check(aten.upsample_nearest1d.default, make(2, 3, 4), [12], exact=True)
        check(aten.upsample_nearest2d_backward.default, make(2, 3, 8, 15), [8, 15], [2, 3, 4, 5])
        check(aten.upsample_nearest1d_backward.default, make(2, 3, 8), [8], [2, 3, 4], 2.0)


def test_nearest_by_any_factor() -> None:
    """Up and down, with and without scales; a gradient that would shrink contiguous rows stays with
    ATen.
    """
    forward, backward = aten.upsample_nearest2d.default, aten.upsample_nearest2d_backward.default
    for dtype in FLOATS:
        make = Make(6, dtype)
        for _ in range(12):
            shape = [
                make.integer(1, 3),
                make.integer(1, 4),
                make.integer(1, 12),
                make.integer(1, 12),
            ]
            wanted = [make.integer(1, 25), make.integer(1, 25)]
            scales: list[float] = []
            if make.integer(0, 2):
                scales = [make.integer(40, 300) / 97 for _ in wanted]
                wanted = [max(1, int(s * f)) for s, f in zip(shape[2:], scales, strict=True)]
            for x in images(make, *shape):
                check(forward, x, wanted, *scales, exact=True)
            for grad in images(make, *shape[:2], *wanted):
                call = (grad, wanted, shape, *scales)
                graph, _ = decomposed(backward, call, {}, flat(backward(*call)))
                assert is_decomposed(graph) or wanted[1] < shape[3]
                if is_decomposed(graph):
                    check(backward, *call, near=4.0)
        check(aten.upsample_nearest1d_backward.default, make(2, 3, 11), [11], [2, 3, 4], None)
        check(
            aten.upsample_nearest3d_backward.default,
            make(1, 2, 5, 7, 9),
            [5, 7, 9],
            [1, 2, 3, 4, 5],
        )
    far = torch.randn(1, 1, 1, 300)
    graph, _ = decomposed(
        backward, (far, [1, 300], [1, 1, 1, 7]), {}, flat(backward(far, [1, 300], [1, 1, 1, 7]))
    )
    assert not is_decomposed(graph)


def test_exact_places() -> None:
    """The nearest element to the middle of each place. What eager reads where that lies between two
    elements depends on the CPU, so those calls may stay with ATen.
    """
    make = Make(7, torch.float32)
    decomposed_calls = 0
    for spatial in (1, 2, 3):
        forward = getattr(aten, f"_upsample_nearest_exact{spatial}d").default
        backward = getattr(aten, f"_upsample_nearest_exact{spatial}d_backward").default
        for _ in range(8):
            shape = [2, 3, *(make.integer(1, 12) for _ in range(spatial))]
            wanted = [make.integer(1, 25) for _ in range(spatial)]
            x = make(*shape)
            graph, _ = decomposed(forward, (x, wanted), {}, flat(forward(x, wanted)))
            if is_decomposed(graph):
                decomposed_calls += 1
                check(forward, x, wanted, exact=True)
            grad = make(2, 3, *wanted)
            call = (grad, wanted, shape)
            graph, _ = decomposed(backward, call, {}, flat(backward(*call)))
            if is_decomposed(graph):
                check(backward, *call, near=9.0)
    assert decomposed_calls > 12


def test_scales_that_eager_ignores() -> None:
    """A CPU ignores the scale of an image's dim that keeps or doubles its size."""
    for spatial in (1, 2, 3):
        forward = getattr(aten, f"upsample_nearest{spatial}d").default
        for factor, scale in ((1, 1.237), (2, 2.26)):
            x = Make(8, torch.float32)(1, 2, *[7] * spatial)
            check(forward, x, [7 * factor] * spatial, *[scale] * spatial, exact=True)


def test_uneven_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that overlap and differ in size; more windows than elements; volumes. A CPU, which
    leaves some of them to ATen, stands for a GPU.
    """
    monkeypatch.setattr(adaptive, "_along_rows", lambda b: False)
    for dtype in FLOATS:
        make = Make(9, dtype)
        for shape, size in (
            ((7, 9), [3, 4]),
            ((5, 6), [5, 8]),
            ((4, 10), [3, 1]),
            ((3, 3), [7, 2]),
        ):
            for x in images(make, 2, 3, *shape):
                check(aten._adaptive_avg_pool2d.default, x, size, near=2.0)
                grad = make(2, 3, *size).contiguous()
                check(aten._adaptive_avg_pool2d_backward.default, grad, x, near=2.0)
        if dtype is not torch.bfloat16:
            x = make(2, 3, 4, 5, 6)
            check(aten._adaptive_avg_pool3d.default, x, [2, 3, 4], near=2.0)
            grad = make(2, 3, 2, 3, 4)
            check(aten._adaptive_avg_pool3d_backward.default, grad, x, near=2.0)


def test_windows_of_many_places() -> None:
    make = Make(10, torch.float32)
    for args in (([6, 6], [6, 6]), ([7, 8], [2, 3], [3, 2], True, False)):
        check(aten.avg_pool2d.default, make(2, 3, 17, 19).contiguous(), *args, near=9.0)
