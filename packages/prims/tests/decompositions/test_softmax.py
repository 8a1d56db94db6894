"""Softmax and its relatives."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES_DIMS = (
    ((7,), 0),
    ((3, 5), 1),
    ((3, 5), 0),
    ((2, 3, 4), -2),
    ((2, 70), -1),
    ((), 0),
    ((0, 3), 1),
    ((3, 0), 1),
)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_forward(name: str) -> None:
    op = getattr(aten, name).default
    for dtype in FLOATS:
        for shape, dim in SHAPES_DIMS:
            check(op, Make(0, dtype)(*shape), dim, False)
    check(
        op,
        torch.tensor([[1000.0, 999.0, -1000.0], [float("-inf"), 0.0, 1.0], [float("-inf")] * 3]),
        1,
        False,
    )


def test_safe_softmax() -> None:
    for dtype in FLOATS:
        for shape, dim in SHAPES_DIMS:
            check(aten._safe_softmax.default, Make(0, dtype)(*shape), dim)
    inf = float("inf")
    check(aten._safe_softmax.default, torch.tensor([[-inf, -inf], [-inf, 1.0], [2.0, 1.0]]), -1)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_backward(name: str) -> None:
    op = getattr(aten, f"{name}_backward_data").default
    for dtype in FLOATS:
        for shape, dim in SHAPES_DIMS:
            make = Make(1, dtype)
            y = getattr(aten, name).default(make(*shape), dim, False)
            check(op, make(*shape), y, dim, dtype)
