"""Kernels whose reads no vector makes, for `tools.tilings`: lone scattered reads and windows. Tiles
of `tiling._scattered_tiling` are fitted to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tools.bench.kernel_cases import KernelCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def one(function: Callable[[Tensor], Any], *shape: int, dtype: torch.dtype = F32) -> KernelCase:
    """A function of normal numbers."""
    return KernelCase(
        function, lambda device: (torch.randn(shape, device=device).to(dtype),)
    )  # fmt: skip


def looked_up(
    function: Callable[[Tensor, Tensor], Any], shape: tuple[int, ...], count: tuple[int, ...],
    dtype: torch.dtype = F32,
) -> KernelCase:  # fmt: skip
    """A function of normal numbers and of places along their last dim."""
    return KernelCase(
        function,
        lambda device: (
            torch.randn(shape, device=device).to(dtype),
            torch.randint(0, shape[-1], count, device=device),
        ),
    )


def sampled(dtype: torch.dtype) -> KernelCase:
    """Bilinear samples of images at random places."""
    return KernelCase(
        lambda x, places: F.grid_sample(x, places, align_corners=False),
        lambda device: (
            torch.randn(16, 32, 128, 128, device=device).to(dtype),
            (torch.rand(16, 128, 128, 2, device=device) * 2 - 1).to(dtype),
        ),
    )


SCATTERED_CASES = {
    "flip": one(lambda x: x.flip(-1) * 2, 16384, 1024),
    "flip_bf16": one(lambda x: x.flip(-1) * 2, 16384, 3072, dtype=BF16),
    "flip_f64": one(lambda x: x.flip(-1) * 2, 16384, 1024, dtype=torch.float64),
    "every_second_bf16": one(lambda x: x[:, ::2] * 2 + 1, 16384, 4096, dtype=BF16),
    "every_third": one(lambda x: x[:, ::3] * 2 + 1, 16384, 3000),
    "unfold_bf16": one(lambda x: F.unfold(x, 3, padding=1) * 2, 16, 32, 112, 112, dtype=BF16),
    "shuffle_bf16": one(lambda x: F.pixel_shuffle(x, 2) * 2, 16, 256, 96, 96, dtype=BF16),
    "gather_f16": looked_up(lambda x, i: x.gather(-1, i) * 2, (16384, 1024), (16384, 1024), F16),
    "take": looked_up(lambda x, i: x[i] + 1, (1 << 26,), (1 << 22,)),
    "select": looked_up(lambda x, i: x.index_select(-1, i) * 2, (16384, 1024), (1000,), F32),
    "select_rows": looked_up(lambda x, i: x[:, i] + 1, (512, 512, 63), (300,), F16),
    "gather_bf16": looked_up(lambda x, i: x.gather(-1, i) + 1, (16384, 512), (16384, 2000), BF16),
    "select_bf16": looked_up(lambda x, i: x.index_select(-1, i) * 2, (16384, 1024), (3000,), BF16),
    "grid_sample_f32": sampled(F32),
    "grid_sample_bf16": sampled(BF16),
    "max_pool_3": one(lambda x: F.max_pool2d(x, 3, 2, 1), 32, 64, 224, 224),
    "max_pool_3_bf16": one(lambda x: F.max_pool2d(x, 3, 2, 1), 32, 64, 225, 225, dtype=BF16),
    "max_pool_2_bf16": one(lambda x: F.max_pool2d(x, 2), 32, 64, 224, 224, dtype=BF16),
    "mean_pool_odd": one(lambda x: F.avg_pool2d(x, 3, 1, 1), 32, 64, 113, 113),
    "rows_pool": one(lambda x: F.max_pool1d(x, 5, 3, 2), 64, 128, 5003, dtype=F16),
}
"""Name -> case."""
