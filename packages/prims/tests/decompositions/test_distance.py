"""Distances between rows: norms of each kind, batches, empty matrices."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

aten = torch.ops.aten


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_norms_of_differences(p: float) -> None:
    for dtype in (torch.float32, torch.float64):
        make = Make(0, dtype)
        for x, y in (
            (make(7, 5), make(9, 5)), (make(2, 1, 7, 5), make(3, 9, 5)), (make(0, 5), make(9, 5)),
        ):  # fmt: skip
            check(aten._cdist_forward.default, x, y, p, None, factor=4.0)
        check(aten._cdist_forward.default, make(60, 5), make(60, 5), p, 2, factor=4.0)


def test_products_stay_with_aten() -> None:
    make = Make(1, torch.float32)
    for rows, mode in ((30, None), (4, 1)):
        args = (make(rows, 5), make(4, 5), 2.0, mode)
        graph, _ = decomposed(
            aten._cdist_forward.default, args, {}, flat(aten._cdist_forward.default(*args))
        )
        assert not is_decomposed(graph)
