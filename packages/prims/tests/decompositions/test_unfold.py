"""Windows as columns: steps, gaps, padding, with and without a batch."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check

im2col = torch.ops.aten.im2col.default


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_windows_as_columns(dtype: torch.dtype) -> None:
    make = Make(0, dtype)
    for kernel, dilation, padding, stride in (
        ([3, 2], [1, 1], [0, 0], [1, 1]), ([2, 3], [2, 1], [1, 2], [3, 2]),
        ([1, 1], [1, 1], [0, 1], [2, 1]),
    ):  # fmt: skip
        for x in (make(2, 3, 9, 8), make(3, 9, 8), make(2, 3, 8, 9).transpose(2, 3)):
            check(im2col, x, kernel, dilation, padding, stride, exact=True)
