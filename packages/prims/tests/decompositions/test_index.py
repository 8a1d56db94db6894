"""Indexing, joining, padding, scattering of parts."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def makes() -> list[Make]:
    return [Make(seed, dtype) for dtype in DTYPES for seed in range(2)]


def test_index() -> None:
    for make in makes():
        x = make(4, 5, 6)
        first, second = make.index(4, 3, negative=True), make.index(6, 2, 1, negative=True)
        check(aten.index.Tensor, x, [first], exact=True)
        check(aten.index.Tensor, x, [None, None, second], exact=True)
        check(aten.index.Tensor, x, [first, None, second], exact=True)
        check(aten.index.Tensor, x, [None, make.index(5, 2, 3), second], exact=True)
        check(aten.index.Tensor, x, [first.int()], exact=True)
        check(aten.index.Tensor, x, [torch.tensor(2), None], exact=True)
        check(aten.index.Tensor, x, [make.index(4, 0)], exact=True)


def test_gathers() -> None:
    for make in makes():
        check(aten.gather.default, make(4, 5), 1, make.index(5, 4, 3), exact=True)
        check(aten.gather.default, make(4, 5), 0, make.index(4, 2, 2), exact=True)
        check(aten.index_select.default, make(4, 5), -1, make.index(5, 7), exact=True)
        check(aten.index_select.default, make(4, 5), 0, torch.tensor(2), exact=True)
        check(aten.take.default, make(4, 5), make.index(20, 2, 3), exact=True)
        check(aten.embedding.default, make(9, 4), make.index(9, 2, 3), exact=True)
        check(aten.embedding.default, make(9, 4), make.index(9, 3).int(), 0, exact=True)


def test_flip_and_roll() -> None:
    for make in makes():
        check(aten.flip.default, make(3, 4), [0, -1], exact=True)
        check(aten.flip.default, make(3, 4), [], exact=True)
        for shifts, dims in (
            ([1], [0]),
            ([-1, 2], [0, 1]),
            ([5], []),
            ([7, 8], [-1, 0]),
            ([0], [1]),
        ):
            check(aten.roll.default, make(3, 4), shifts, dims, exact=True)
    check(aten.roll.default, torch.empty(0, 3), [1], [1], exact=True)


def test_joins() -> None:
    for make in makes():
        check(aten.cat.default, [make(2, 3), make(4, 3), make(1, 3)], exact=True)
        check(aten.cat.default, [make(2, 3), make(2, 5)], -1, exact=True)
        check(aten.cat.default, [make(2, 3)], exact=True)
        check(aten.cat.default, [make(0), make(2, 3)], 1, exact=True)
        check(aten.stack.default, [make(2, 3), make(2, 3)], 1, exact=True)
        check(aten.stack.default, [make(2, 3), make(2, 3)], -1, exact=True)
        check(aten.stack.default, [make(), make()], exact=True)
        x = make(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        check(aten.cat.default, [x, x], 1, exact=True)
        check(aten.cat.default, [make(2, 3), Make(0, torch.float64)(1, 3)], exact=True)


def test_repeats() -> None:
    for make in makes():
        check(aten.repeat.default, make(2, 3), [2, 1], exact=True)
        check(aten.repeat.default, make(2, 3), [3, 2, 2], exact=True)
        check(aten.repeat.default, make(2, 3), [0, 2], exact=True)
        check(aten.repeat.default, make(), [3], exact=True)


@pytest.mark.parametrize(
    "pad", [[1, 2], [0, 0], [1, 0, 2, 3], [-1, 2], [-1, -1, 2, -1], [0, 0, 0, 0, 1, 1]]
)
def test_padding(pad: list[int]) -> None:
    for make in makes():
        check(aten.constant_pad_nd.default, make(2, 4, 5), pad, exact=True)
        check(aten.constant_pad_nd.default, make(2, 4, 5), pad, 1, exact=True)


def test_gradients_of_parts() -> None:
    for make in makes()[:4]:
        for start, end, step in (
            (1, 4, 1),
            (0, 2**63 - 1, 2),
            (1, 7, 3),
            (-3, -1, 1),
            (2, 2, 1),
            (1, 6, 2),
        ):
            length = len(range(7)[start:end:step])
            check(
                aten.slice_backward.default,
                make(3, length),
                [3, 7],
                1,
                start,
                end,
                step,
                exact=True,
            )
        check(aten.select_backward.default, make(3), [3, 4], 1, -2, exact=True)
        check(aten.select_backward.default, make(4), [3, 4], 0, 1, exact=True)
        for offset, length in ((0, 3), (1, 3), (-1, 2), (3, 2)):
            check(aten.diagonal_backward.default, make(length), [3, 5], offset, 0, 1, exact=True)
        check(aten.diagonal_backward.default, make(4, 3), [3, 4, 5], 2, 0, -1, exact=True)
        check(aten.diag_embed.default, make(2, 3), exact=True)
        check(aten.diag_embed.default, make(2, 3), 1, 0, 2, exact=True)


def test_scatters_of_parts() -> None:
    for make in makes():
        x = make(5, 6)
        check(aten.slice_scatter.default, x, make(3, 6), 0, 1, 4, exact=True)
        check(aten.slice_scatter.default, x, make(5, 3), 1, 0, 6, 2, exact=True)
        check(aten.slice_scatter.default, x, make(5, 6), exact=True)
        check(aten.slice_scatter.default, x, make(5, 0), 1, 3, 3, exact=True)
        check(aten.slice_scatter.default, x, make(5, 2), 1, 1, 6, 3, exact=True)
        check(aten.select_scatter.default, x, make(5), 1, -1, exact=True)
        check(aten.select_scatter.default, x, make(6), 0, 0, exact=True)
        check(aten.diagonal_scatter.default, x, make(4), 2, exact=True)
        check(aten.diagonal_scatter.default, x, make(4), -1, 0, 1, exact=True)


def test_repeat_interleave() -> None:
    check(aten.repeat_interleave.self_int, Make(0, torch.float32)(2, 3), 3, 1, exact=True)
    check(aten.repeat_interleave.self_int, Make(0, torch.float32)(2, 3), 2, exact=True)


def test_turns_and_classes() -> None:
    for k in (-1, 0, 1, 2, 3):
        check(aten.rot90.default, Make(0, torch.float32)(2, 3, 4), k, [0, 2], exact=True)
    check(aten.one_hot.default, Make(0, torch.int64).index(5, 2, 3), 7, exact=True)


def test_gathers_of_scalars_and_of_nothing() -> None:
    make = Make(11, torch.float32)
    gather = torch.ops.aten.gather.default
    check(gather, make(), 0, torch.tensor(0), exact=True)
    check(gather, make(), -1, torch.zeros(3, dtype=torch.int64), exact=True)
    check(gather, make(5), 0, torch.tensor(3), exact=True)
    for dtype in (torch.int64, torch.uint8):
        check(gather, make(2, 3), 1, torch.empty(0, dtype=dtype), exact=True)
