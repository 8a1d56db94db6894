"""Kernels over short rows in half precision, for `tools.tilings`: the tiles of `tiling._persistent`
that one warp keeps are fitted to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tools.bench.kernel_cases import KernelCase
from tools.tilings.scattered_cases import BF16, F16, one

if TYPE_CHECKING:
    from torch import Tensor


def layer_norm(x: Tensor) -> Tensor:
    """Layer norm of the last dim, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def to_int8(x: Tensor) -> Tensor:
    """Rows scaled to the range of int8 by their greatest magnitudes."""
    greatest = x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return (x / greatest * 127).round().to(torch.int8)


def of_two(function: Any, *shape: int) -> KernelCase:
    """A function of two tensors of normal numbers."""
    return KernelCase(
        function, lambda device: tuple(torch.randn(shape, device=device).to(BF16) for _ in "ab")
    )


ROW_CASES = {
    "row_softmax": one(lambda x: x.softmax(-1), 32768, 1024, dtype=BF16),
    "row_softmax_768": one(lambda x: x.softmax(-1), 32768, 768, dtype=F16),
    "row_log_softmax_640": one(lambda x: x.log_softmax(-1), 32768, 640, dtype=BF16),
    "row_sum": one(lambda x: x.float().square().sum(-1), 65536, 1024, dtype=BF16),
    "row_to_int8": one(to_int8, 32768, 1024, dtype=BF16),
    "row_rms_norm": one(lambda x: F.rms_norm(x, x.shape[-1:]), 32768, 1024, dtype=BF16),
    "row_norm_512": one(layer_norm, 65536, 512, dtype=BF16),
    "row_norm_of_few": one(layer_norm, 4096, 1024, dtype=BF16),
    "row_norm_of_gelu": one(lambda x: layer_norm(F.gelu(x)), 32768, 1024, dtype=BF16),
    "row_norm_of_sum": of_two(lambda x, y: layer_norm(x + y), 32768, 1024),
}
