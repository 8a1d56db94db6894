"""Average pooling and nearest-neighbour resampling."""

from __future__ import annotations

from typing import Any

import torch
from one_op import Make, check, decomposed, flat, is_decomposed

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


def test_windows() -> None:
    cases: list[tuple[Any, ...]] = [
        ([2, 2],), ([3, 3], [2, 2]), ([3, 3], [1, 1], [1, 1]), ([2, 3], [2, 1]), ([2, 2], [], [0, 0], False, True, 3),
    ]  # fmt: skip
    for dtype in FLOATS:
        for args in cases:
            for x in images(Make(1, dtype), 2, 3, 7, 8):
                check(aten.avg_pool2d.default, x, *args)


def test_windows_backward() -> None:
    for dtype in FLOATS:
        make = Make(2, dtype)
        check(
            aten.avg_pool2d_backward.default,
            make(2, 3, 3, 4),
            make(2, 3, 7, 8),
            [2, 2],
            [],
            [0, 0],
            False,
            True,
            None,
        )
        check(
            aten.avg_pool2d_backward.default,
            make(2, 3, 4, 4),
            make(2, 3, 8, 8),
            [2, 2],
            [2, 2],
            [0, 0],
            True,
            True,
            None,
        )


def test_what_stays_with_aten() -> None:
    x = Make(3, torch.float32)(2, 3, 7, 8)
    for op, args in (
        (aten._adaptive_avg_pool2d.default, (x, [2, 3])),
        (aten.avg_pool2d.default, (x, [3, 3], [2, 2], [0, 0], True)),
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
