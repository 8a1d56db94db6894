"""What `tools.bench kernels` times: functions that are one or a few kernels each, over all
families of kernels, in sizes that fill a GPU; odd sizes too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tools.bench.flex_cases import FLEX_CASES

if TYPE_CHECKING:
    from collections.abc import Callable

HALF = torch.bfloat16


@dataclass(frozen=True)
class KernelCase:
    """A function and the shapes it is called with.

    `inputs` makes the arguments on a device. With `training`, a call is the forward and the
    backward pass. `bytes` overrides what the call must move at least: by default every input is
    read once and every result (and gradient) written once.
    """

    function: Callable[..., Any]
    inputs: Callable[[str], tuple[Any, ...]]
    training: bool = False
    bytes: int | None = None


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[str], torch.Tensor]:
    """Normal numbers."""
    return lambda device: torch.randn(shape, device=device, dtype=dtype)


def ints(high: int, *shape: int) -> Callable[[str], torch.Tensor]:
    """int64 numbers below `high`."""
    return lambda device: torch.randint(0, high, shape, device=device)


def rows_last(*shape: int) -> Callable[[str], torch.Tensor]:
    """Normal numbers in channels-last order."""
    return lambda device: torch.randn(shape, device=device).to(memory_format=torch.channels_last)


def args(*makers: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """The arguments that these make on a device."""
    return lambda device: tuple(make(device) for make in makers)


def lists(count: int, *shape: int) -> Callable[[str], list[torch.Tensor]]:
    """Tensors of one shape."""
    return lambda device: [torch.randn(shape, device=device) for _ in range(count)]


def gelu_mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A gated unit."""
    return F.gelu(x) * torch.sigmoid(y) + x / 2


def swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The activation of a Llama-type MLP."""
    return F.silu(x) * y


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm as models write it."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm of the last dim."""
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def group_norm_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Group norm and SiLU, as in a U-Net."""
    return F.silu(F.group_norm(x, 32, weight, bias))


def batch_norm_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Batch norm with the statistics of the batch, and ReLU."""
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dynamic int8 quantisation of rows."""
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def nearest_entry(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The entry of a codebook that is nearest to each row."""
    squares = x.square().sum(1, keepdim=True), codes.square().sum(1)
    return (squares[0] - 2 * x @ codes.t() + squares[1]).argmin(1)


def adam(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    firsts: list[torch.Tensor],
    seconds: list[torch.Tensor],
) -> list[torch.Tensor]:
    """A step of Adam over many tensors; the new parameters."""
    results = []
    for p, g, m, v in zip(params, grads, firsts, seconds, strict=True):
        m = m * 0.9 + g * 0.1
        v = v * 0.999 + g * g * 0.001
        results += [p - 1e-3 * m / (v.sqrt() + 1e-8), m, v]
    return results


def bilinear(x: torch.Tensor) -> torch.Tensor:
    """Upsampling by 2."""
    return F.interpolate(x, scale_factor=2, mode="bilinear")


def index_add(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Rows added where an index says."""
    return torch.index_add(x, 0, index, source)


def dropout_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Dropout and a residual."""
    return F.dropout(x, 0.1) + y


KERNEL_CASES: dict[str, KernelCase] = {
    # Pointwise
    "gelu_mul": KernelCase(gelu_mul, args(randn(1 << 25), randn(1 << 25))),
    "gelu_mul_odd": KernelCase(gelu_mul, args(randn(33_554_467), randn(33_554_467))),
    "swiglu_bf16": KernelCase(
        swiglu, args(randn(8192, 11008, dtype=HALF), randn(8192, 11008, dtype=HALF))
    ),
    "bias_rows_odd": KernelCase(lambda x, b: F.relu(x + b), args(randn(8191, 4097), randn(4097))),
    "cast_fp8": KernelCase(
        lambda x: (x * 2).to(torch.float8_e4m3fn), args(randn(16384, 4096, dtype=HALF))
    ),
    "rotary_bf16": KernelCase(
        rotary,
        args(
            randn(8, 32, 2048, 128, dtype=HALF),
            randn(2048, 128, dtype=HALF),
            randn(2048, 128, dtype=HALF),
        ),
    ),
    "dropout_add": KernelCase(dropout_add, args(randn(1 << 25), randn(1 << 25))),
    "adam": KernelCase(
        adam, args(*(lists(50, 1024, 513) for _ in range(4))), bytes=50 * 1024 * 513 * 4 * 7
    ),
    # Layout
    "transpose": KernelCase(lambda x: x.t().contiguous() + 1, args(randn(8192, 8192))),
    "to_channels_last": KernelCase(
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
        args(randn(32, 64, 128, 128)),
    ),
    "cat": KernelCase(
        lambda a, b, c: torch.cat([a.relu(), b * 2, c], 1),
        args(randn(4096, 2048), randn(4096, 1000), randn(4096, 3001)),
    ),
    # Reductions
    "sum": KernelCase(lambda x: (x * x).sum(), args(randn(1 << 26))),
    "mean_var": KernelCase(lambda x: (x.mean(), x.var()), args(randn(1 << 26))),
    "row_sum_odd": KernelCase(lambda x: x.exp().sum(-1), args(randn(16384, 4099))),
    "column_sum": KernelCase(lambda x: x.sum(0), args(randn(65536, 1024))),
    "argmax": KernelCase(lambda x: x.argmax(-1), args(randn(2048, 32000))),
    "softmax": KernelCase(lambda x: x.softmax(-1), args(randn(65536, 1024))),
    "softmax_bf16_odd": KernelCase(lambda x: x.softmax(-1), args(randn(32768, 1531, dtype=HALF))),
    "softmax_32k": KernelCase(lambda x: x.softmax(-1), args(randn(2048, 32768))),
    "log_softmax_256k": KernelCase(
        lambda x: x.log_softmax(-1), args(randn(256, 262144, dtype=HALF))
    ),
    "logsumexp_columns": KernelCase(lambda x: x.logsumexp(0), args(randn(4096, 16384))),
    "cross_entropy": KernelCase(
        lambda x, y: F.cross_entropy(x, y), args(randn(2048, 50257), ints(50257, 2048))
    ),
    "cross_entropy_training": KernelCase(
        lambda x, y: F.cross_entropy(x, y),
        args(randn(2048, 50257), ints(50257, 2048)),
        training=True,
        bytes=4 * 2048 * 50257 * 4,  # eager's backward does not see later writes to the logits
    ),
    "nearest_entry": KernelCase(
        nearest_entry, args(randn(32768, 64, dtype=HALF), randn(8192, 64, dtype=HALF))
    ),
    "greatest_of_product": KernelCase(
        lambda x, w: (x @ w.t()).abs().amax(-1),
        args(randn(16384, 128, dtype=HALF), randn(8192, 128, dtype=HALF)),
    ),
    "quantize_int8": KernelCase(quantize_rows, args(randn(16384, 4096, dtype=HALF))),
    # Norms
    "layer_norm_bf16": KernelCase(
        layer_norm,
        args(randn(32768, 1024, dtype=HALF), randn(1024, dtype=HALF), randn(1024, dtype=HALF)),
    ),
    # The backward reads rows again, and the statistics of a channel are known only after all of it
    # is read: more than the cache holds.
    "layer_norm_training": KernelCase(
        layer_norm,
        args(randn(16384, 1024), randn(1024), randn(1024)),
        training=True,
        bytes=5 * 16384 * 1024 * 4,
    ),
    "rms_norm_bf16": KernelCase(
        rms_norm, args(randn(16384, 4096, dtype=HALF), randn(4096, dtype=HALF))
    ),
    "rms_norm_training": KernelCase(
        rms_norm,
        args(randn(8192, 4096, dtype=HALF), randn(4096, dtype=HALF)),
        training=True,
        bytes=6 * 8192 * 4096 * 2,  # nor this one's to the input
    ),
    "group_norm_silu": KernelCase(
        group_norm_silu, args(randn(16, 320, 64, 64), randn(320), randn(320))
    ),
    "batch_norm_training": KernelCase(
        batch_norm_relu,
        args(randn(64, 128, 56, 56), randn(128), randn(128)),
        training=True,
        bytes=8 * 64 * 128 * 56 * 56 * 4,
    ),
    "batch_norm_channels_last": KernelCase(
        batch_norm_relu,
        args(rows_last(64, 128, 56, 56), randn(128), randn(128)),
        bytes=3 * 64 * 128 * 56 * 56 * 4,
    ),
    "instance_norm": KernelCase(lambda x: F.instance_norm(x), args(randn(32, 64, 128, 128))),
    # Scans and sorts
    "cumsum_rows": KernelCase(lambda x: x.cumsum(-1), args(randn(16384, 4096))),
    "cumsum_columns": KernelCase(lambda x: x.cumsum(0), args(randn(4096, 16384))),
    "cumsum_flat": KernelCase(lambda x: x.cumsum(0), args(randn(1 << 25))),
    "topk": KernelCase(lambda x: x.topk(8, -1), args(randn(65536, 128))),
    "sort": KernelCase(lambda x: x.sort(-1), args(randn(32768, 256))),
    # Windows
    "max_pool": KernelCase(lambda x: F.max_pool2d(x, 3, 2, 1), args(randn(64, 64, 112, 112))),
    "max_pool_training": KernelCase(
        lambda x: F.max_pool2d(x, 3, 2, 1), args(randn(64, 64, 112, 112)), training=True
    ),
    "avg_pool": KernelCase(lambda x: F.avg_pool2d(x, 2), args(randn(64, 64, 112, 112))),
    "adaptive_pool": KernelCase(
        lambda x: F.adaptive_avg_pool2d(x, 7), args(randn(64, 512, 30, 30))
    ),
    "bilinear": KernelCase(bilinear, args(randn(16, 64, 128, 128))),
    "bilinear_training": KernelCase(bilinear, args(randn(16, 64, 128, 128)), training=True),
    "bicubic": KernelCase(
        lambda x: F.interpolate(x, size=(300, 300), mode="bicubic"), args(randn(8, 16, 200, 200))
    ),
    "grid_sample": KernelCase(
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        args(randn(16, 32, 128, 128), randn(16, 128, 128, 2)),
    ),
    # Gathers and scatters
    "embedding_bf16": KernelCase(
        lambda w, i: F.embedding(i, w) * math.sqrt(2),
        args(randn(50257, 1024, dtype=HALF), ints(50257, 32768)),
        bytes=2 * 32768 * 1024 * 2,
    ),
    "embedding_training": KernelCase(
        lambda w, i: F.embedding(i, w),
        args(randn(50257, 768), ints(50257, 16384)),
        training=True,
        bytes=(3 * 16384 + 50257) * 768 * 4,
    ),
    "index_add": KernelCase(
        index_add,
        args(randn(20000, 512), ints(20000, 65536), randn(65536, 512)),
        bytes=(2 * 20000 + 65536) * 512 * 4,
    ),
    "gather": KernelCase(
        lambda x, i: x.gather(-1, i) * 2, args(randn(16384, 1024), ints(1024, 16384, 512))
    ),
    # Attention by functions: as many bytes as queries, keys, values and results
    **{name: KernelCase(*case) for name, case in FLEX_CASES.items()},
}
