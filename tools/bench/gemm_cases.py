"""What `tools.bench gemm` times: products with a bias and GELU, bfloat16, over sizes of models,
odd sizes, few rows, few summands, and batches; beside them products with other code around.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

BF16 = torch.bfloat16
Shape = tuple[int, ...]


@dataclass(frozen=True)
class GemmCase:
    """A function and the shapes (and dtypes, where they are not bfloat16) of its arguments."""

    function: Callable[..., Any]
    shapes: tuple[Shape | tuple[Shape, torch.dtype], ...]

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Random arguments; weights are scaled so that results are of order 1."""
        result = []
        for each in self.shapes:
            shape, dtype = each if isinstance(each[-1], torch.dtype) else (each, BF16)
            if dtype is torch.int64:
                rows = result[-1].shape[0]
                result.append(torch.randint(rows, shape, device=device))
            elif dtype is torch.int32:  # where each expert's rows end
                rows, count = result[0].shape[0], shape[0]
                ends = torch.arange(1, count + 1, device=device) ** 2 * rows // count**2
                result.append(ends.to(dtype))
            elif dtype is torch.uint8:
                result.append(torch.randint(256, shape, device=device, dtype=dtype))
            elif dtype is torch.int8:
                result.append(torch.randint(-100, 100, shape, device=device, dtype=dtype))
            else:
                scale = shape[-1] ** -0.5 if result else 1.0
                result.append((torch.randn(shape, device=device) * scale).to(dtype))
        return result


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A linear layer and GELU."""
    return F.gelu(F.linear(x, w, b))


def batched_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A linear layer for each batch, and GELU."""
    return F.gelu(torch.bmm(x, w.transpose(1, 2)) + b)


def linear_residual(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor
) -> torch.Tensor:
    """A linear layer and what is added to it."""
    return F.linear(x, w, b) + r


def gated(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The first half of a Llama-type MLP."""
    return F.silu(F.linear(x, v)) * F.linear(x, w)


def int8_weights(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """A linear layer with quantised weights, one scale a row."""
    return F.linear(x, (q.to(s.dtype) * s).to(x.dtype))


def int4_weights(x: torch.Tensor, p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """A linear layer with two weights a byte, and a scale for each group of a row."""
    q = torch.stack([p & 15, p >> 4], -1).view(p.shape[0], s.shape[1], -1)
    return F.linear(x, ((q.to(s.dtype) - 8) * s[:, :, None]).view(p.shape[0], -1).to(x.dtype))


def float8(
    x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """A linear layer in float8 with scales of rows, and SiLU."""
    return F.silu(torch._scaled_mm(x, w.t(), a, b, bias=c, out_dtype=BF16))


def experts(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """A layer of a mixture of experts: rows sorted by expert, and SiLU."""
    return F.silu(F.grouped_mm(x, w.transpose(1, 2), offs=ends))


def looked_up(x: torch.Tensor, index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A linear layer on some rows, and SiLU."""
    return F.silu(F.linear(x[index], w))


def logsumexp_of_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The denominators of a contrastive loss."""
    return torch.logsumexp(F.linear(x, w) * 8, -1)


def greatest_of_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The scales of a linear layer's results that are quantised by rows."""
    return F.linear(x, w).abs().amax(-1)


def _linear(m: int, n: int, k: int) -> GemmCase:
    return GemmCase(linear_gelu, ((m, k), (n, k), (n,)))


def _batched(batch: int, m: int, n: int, k: int) -> GemmCase:
    return GemmCase(batched_gelu, ((batch, m, k), (batch, n, k), (batch, 1, n)))


def _quantised(m: int, n: int, k: int) -> GemmCase:
    scale = ((n, 1), torch.float32)
    return GemmCase(int8_weights, ((m, k), ((n, k), torch.int8), scale))


def _packed(m: int, n: int, k: int, group: int) -> GemmCase:
    scale = ((n, k // group), torch.float32)
    return GemmCase(int4_weights, ((m, k), ((n, k // 2), torch.uint8), scale))


def _experts(m: int, n: int, k: int, count: int) -> GemmCase:
    return GemmCase(experts, ((m, k), (count, n, k), ((count,), torch.int32)))


def _float8(m: int, n: int, k: int) -> GemmCase:
    kind, scale = torch.float8_e4m3fn, torch.float32
    shapes = ((m, k), kind), ((n, k), kind), ((m, 1), scale), ((1, n), scale), (n,)
    return GemmCase(float8, shapes)


GEMM_CASES: dict[str, GemmCase] = {
    # A step of decoding.
    "1x4096x4096": _linear(1, 4096, 4096),
    "1x14336x4096": _linear(1, 14336, 4096),
    "1x50257x768": _linear(1, 50257, 768),
    "8x4096x4096": _linear(8, 4096, 4096),
    "8x4096x14336": _linear(8, 4096, 14336),
    "16x1024x4096": _linear(16, 1024, 4096),
    "16x14336x4096": _linear(16, 14336, 4096),
    "64x4096x4096": _linear(64, 4096, 4096),
    "64x4096x14336": _linear(64, 4096, 14336),
    # BERT and GPT-2.
    "512x3072x768": _linear(512, 3072, 768),
    "2048x768x768": _linear(2048, 768, 768),
    "2048x3072x768": _linear(2048, 3072, 768),
    "2048x768x3072": _linear(2048, 768, 3072),
    "4096x2304x768": _linear(4096, 2304, 768),
    "4096x4096x1024": _linear(4096, 4096, 1024),
    "4096x1024x4096": _linear(4096, 1024, 4096),
    "4096x50257x768": _linear(4096, 50257, 768),
    # Llama.
    "256x4096x4096": _linear(256, 4096, 4096),
    "1024x4096x4096": _linear(1024, 4096, 4096),
    "2048x11008x4096": _linear(2048, 11008, 4096),
    "4096x4096x4096": _linear(4096, 4096, 4096),
    "4096x4096x14336": _linear(4096, 4096, 14336),
    # Odd sizes.
    "1000x1001x999": _linear(1000, 1001, 999),
    "777x3333x511": _linear(777, 3333, 511),
    "2047x3071x768": _linear(2047, 3071, 768),
    # Few summands.
    "4096x4096x64": _linear(4096, 4096, 64),
    "65536x256x128": _linear(65536, 256, 128),
    # Batches.
    "96x512x512x64": _batched(96, 512, 512, 64),
    "16x1024x1024x512": _batched(16, 1024, 1024, 512),
    "64x16x1024x1024": _batched(64, 16, 1024, 1024),
}
"""Rows x lanes x depth (a batch before them): what the ratios' mean is taken over."""

OTHER_CASES: dict[str, GemmCase] = {
    "residual": GemmCase(linear_residual, ((4096, 4096), (1024, 4096), (1024,), (4096, 1024))),
    "gated": GemmCase(gated, ((2048, 2048), (5632, 2048), (5632, 2048))),
    "gated_decode": GemmCase(gated, ((8, 4096), (14336, 4096), (14336, 4096))),
    "int8_1x4096x4096": _quantised(1, 4096, 4096),
    "int8_16x4096x4096": _quantised(16, 4096, 4096),
    "int8_2048x4096x4096": _quantised(2048, 4096, 4096),
    "int4_1x4096x4096": _packed(1, 4096, 4096, 128),
    "int4_16x4096x4096": _packed(16, 4096, 4096, 128),
    "int4_128x4096x4096": _packed(128, 4096, 4096, 128),
    "float8_16x4096x4096": _float8(16, 4096, 4096),
    "float8_4096x4096x4096": _float8(4096, 4096, 4096),
    "experts_4096x4096x2048": _experts(4096, 4096, 2048, 8),
    "experts_64x4096x2048": _experts(64, 4096, 2048, 8),
    "logsumexp_16384x8192x128": GemmCase(logsumexp_of_rows, ((16384, 128), (8192, 128))),
    "logsumexp_4096x50257x768": GemmCase(logsumexp_of_rows, ((4096, 768), (50257, 768))),
    "amax_16384x8192x128": GemmCase(greatest_of_rows, ((16384, 128), (8192, 128))),
    "amax_8192x8192x1024": GemmCase(greatest_of_rows, ((8192, 1024), (8192, 1024))),
    "looked_up": GemmCase(looked_up, ((4096, 1024), ((2048,), torch.int64), (4096, 1024))),
}
"""Printed, too, but in no mean."""
