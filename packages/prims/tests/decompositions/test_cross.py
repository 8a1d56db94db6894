"""Cross products: along any dim, broadcast."""

from __future__ import annotations

import torch
from one_op import Make, check

cross = torch.ops.aten.linalg_cross.default


def test_cross_products() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8):
        make = Make(0, dtype)
        check(cross, make(4, 3), make(4, 3), near=9.0)
        check(cross, make(5, 3, 4), make(1, 3, 4), dim=1, near=9.0)
        check(cross, make(3, 1, 4), make(3, 6, 1), dim=-3, near=9.0)
        check(cross, make(0, 3), make(0, 3))
