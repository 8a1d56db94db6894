"""Copies of views, blocks, and spaced numbers: shapes, strides and values as eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, is_decomposed

aten = torch.ops.aten

COPIES: list[tuple[Any, tuple[int, ...], tuple[Any, ...]]] = [
    (aten.diagonal_copy.default, (3, 5), ()),
    (aten.diagonal_copy.default, (3, 2, 5), (-1, 0, -1)),
    (aten.select_copy.int, (3, 4), (1, -1)),
    (aten.slice_copy.Tensor, (5, 6), (1, 1, 6, 2)),
    (aten.split_copy.Tensor, (7, 2), (3,)),
    (aten.split_with_sizes_copy.default, (7, 2), ([2, 0, 5],)),
    (aten.squeeze_copy.default, (1, 3, 1), ()),
    (aten.squeeze_copy.dim, (1, 3), (0,)),
    (aten.squeeze_copy.dims, (1, 3, 1), ([0, 1],)),
    (aten.t_copy.default, (2, 3), ()),
    (aten.t_copy.default, (3,), ()),
    (aten.transpose_copy.int, (2, 3, 4), (0, -1)),
    (aten.unbind_copy.int, (3, 4), (1,)),
    (aten.unfold_copy.default, (7, 3), (0, 3, 2)),
    (aten.unsqueeze_copy.default, (2, 3), (-1,)),
    (aten.narrow_copy.default, (5, 2), (0, -3, 2)),
    (aten.narrow_copy.default, (5, 2), (1, 0, 1)),
]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_of_views(dtype: torch.dtype) -> None:
    make = Make(1, dtype)
    for op, shape, args in COPIES:
        for _ in range(3):
            check(op, make(*shape), *args)
    whole = Make(2, dtype, layouts=("contiguous",))(4, 6)
    check(aten.as_strided_copy.default, whole, [2, 3], [6, 2], 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks(dtype: torch.dtype) -> None:
    make = Make(3, dtype)
    rows = Make(4, dtype, layouts=("contiguous",))
    for _ in range(3):
        check(
            aten.block_diag.default, [make(2, 3), make(4), make(), make(1, 1), make(0, 2), make(0)]
        )
        check(aten._chunk_cat.default, [rows(5, 3), rows(4, 2)], 0, 3)
        check(aten._chunk_cat.default, [rows(2, 5, 3), rows(2, 1, 3)], 1, 2)
        check(aten.channel_shuffle.default, make(2, 6, 3, 2), 3)
        check(aten.channel_shuffle.default, make(2, 6, 3), 1)
    check(aten.block_diag.default, [make(2, 3), torch.ones(2, 1, dtype=torch.float64)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_spaced_numbers(dtype: torch.dtype) -> None:
    one, other, whole = torch.tensor(1.5), torch.tensor(-3.0), torch.tensor(7)
    for steps in (0, 1, 2, 7, 50):
        for name in ("linspace", "logspace"):
            packet = getattr(aten, name)
            check(packet.Tensor_Tensor, one, other, steps, dtype=dtype)
            check(packet.Tensor_Scalar, whole, 4.5, steps, dtype=dtype)
            check(packet.Scalar_Tensor, 1, whole, steps, dtype=dtype)
        check(aten.logspace.default, 1.5, -2, steps, 2.0, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lengths_and_angles(dtype: torch.dtype) -> None:
    make, special = Make(5, dtype), Make(6, dtype, special=True)
    for shape in ((), (30, 40), (0, 3)):
        check(aten.angle.default, special(*shape))
        check(aten.hypot.default, special(*shape), special(*shape))
    check(aten.hypot.default, make(4, 5), make(5))
    for p in (1, 2, 2.5, float("inf")):
        for dim in (0, 1, -1):
            check(aten.renorm.default, make(4, 5, 3), p, dim, 1.5, near=1.0)
    big = torch.tensor([3e38, 1e-40, 0.0, 1e-30])
    check(aten.hypot.default, big, big / 2)
    check(aten.angle.default, torch.tensor([-1, 0, 3]))


def test_what_eager_refuses_stays_atens() -> None:
    x, whole = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.int64)
    calls: list[tuple[Any, tuple[Any, ...], torch.Tensor]] = [
        (aten._chunk_cat.default, ([x, torch.ones(0, 4)], 0, 2), torch.ones(2, 8)),
        (aten.renorm.default, (x, 0, 0, 1.0), x),
        (aten.renorm.default, (x, 2, 0, -1.0), x),
        (aten.renorm.default, (whole, 2, 0, 1.0), whole),
        (aten.put.default, (x, torch.tensor([0, 1]), torch.ones(3)), x),
        (aten.index_fill.int_Tensor, (x, 0, torch.tensor([0]), torch.ones(2)), x),
    ]
    for op, args, result in calls:
        graph, _ = decomposed(op, args, {}, [result])
        assert not is_decomposed(graph), graph
