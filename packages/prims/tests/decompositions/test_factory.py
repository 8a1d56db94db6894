"""Factories and triangles."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_filled(dtype: torch.dtype) -> None:
    x = Make(0, dtype)(3, 4).t()
    for name in ("zeros", "ones"):
        check(getattr(aten, name).default, [2, 3], dtype=dtype, exact=True)
        check(getattr(aten, f"{name}_like").default, x, exact=True)
        check(getattr(aten, f"new_{name}").default, x, [2, 0], exact=True)
    check(aten.full.default, [2, 3], 1, dtype=dtype, exact=True)
    check(aten.full.default, [], 2.5, exact=True)
    check(aten.full_like.default, x, 1, exact=True)
    check(aten.new_full.default, x, [3], 1, exact=True)
    check(aten.scalar_tensor.default, 1, dtype=dtype, exact=True)
    check(aten.scalar_tensor.default, float("-inf"), exact=True)
    check(aten.fill.Scalar, x, 1, exact=True)
    check(aten.fill.Tensor, x, torch.tensor(1), exact=True)


def test_empty() -> None:
    x = Make(0, torch.float32)(3, 4).t()
    check(aten.empty.memory_format, [2, 3], undefined=True)
    check(aten.empty_like.default, x, undefined=True)
    check(aten.new_empty.default, x, [5], undefined=True)
    check(aten.empty_strided.default, [2, 3], [1, 2], undefined=True)
    check(aten.new_empty_strided.default, x, [2, 3], [1, 2], undefined=True)
    check(aten.empty_permuted.default, [2, 3], [1, 0], undefined=True)


def test_progressions() -> None:
    check(aten.arange.default, 7, exact=True)
    check(aten.arange.default, 0, exact=True)
    check(aten.arange.default, 7, dtype=torch.float32, exact=True)
    check(aten.arange.default, 6.5, exact=True)
    check(aten.arange.start, 2, 9, dtype=torch.int32, exact=True)
    check(aten.arange.start_step, 9, 2, -3, exact=True)
    check(aten.arange.start_step, 0.5, 3, 0.25, exact=True)
    check(aten.arange.start_step, 0, 1, 0.1)
    check(aten.arange.start_step, 0, 128, 2, dtype=torch.float32, exact=True)
    check(aten.linspace.default, 0.0, 1.0, 11)
    check(aten.linspace.default, -3.0, 5.0, 8, dtype=torch.float64)
    check(aten.linspace.default, 2.0, 5.0, 1)
    check(aten.linspace.default, 0, 1, 5, dtype=torch.bfloat16)


def test_triangles() -> None:
    check(aten.eye.default, 3, exact=True)
    check(aten.eye.m, 3, 5, dtype=torch.int64, exact=True)
    for dtype in DTYPES:
        make = Make(0, dtype)
        for diagonal in (0, 1, -2, 9):
            for name in ("tril", "triu"):
                check(getattr(aten, name).default, make(4, 5), diagonal, exact=True)
        check(aten.tril.default, make(2, 3, 3), exact=True)
