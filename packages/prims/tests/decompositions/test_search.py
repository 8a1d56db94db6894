"""Membership: few and many members, NaN, numbers instead of tensors."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8, torch.bfloat16])
def test_membership(dtype: torch.dtype) -> None:
    make = Make(0, dtype, special=True)
    for invert in (False, True):
        for count in (0, 1, 5, 64, 65, 700):
            args = (make(6, 7), make(count))
            check(aten.isin.Tensor_Tensor, *args, invert=invert, exact=True)
        check(aten.isin.Tensor_Tensor, make(), make(4, 30), invert=invert, exact=True)
        check(aten.isin.Tensor_Tensor, make(0, 3), make(80), invert=invert, exact=True)
        check(aten.isin.Tensor_Scalar, make(6, 7), 2, invert=invert, exact=True)
        check(aten.isin.Scalar_Tensor, 2, make(6, 7), invert=invert, exact=True)


def test_many_members_stay_with_aten() -> None:
    args = (torch.randn(9), torch.randn(2000))
    op = aten.isin.Tensor_Tensor
    graph, _ = decomposed(op, args, {}, flat(op(*args)))
    assert not is_decomposed(graph)
