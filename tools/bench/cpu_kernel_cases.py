"""What `tools.bench kernels --device cpu` times: functions that are one or a few kernels each, over
all families of kernels, from 1k to 16M elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tools.bench.kernel_cases import (
    HALF,
    KernelCase,
    args,
    batch_norm_relu,
    bilinear,
    dropout_add,
    gelu_mul,
    group_norm_silu,
    index_add,
    ints,
    layer_norm,
    quantize_rows,
    randn,
    rms_norm,
    rotary,
    rows_last,
    swiglu,
)


def bytes_like(*shape: int) -> Any:
    """int8 elements over all of their range."""
    return lambda device: torch.randint(-128, 128, shape, device=device).to(torch.int8)


def pixels(*shape: int) -> Any:
    """uint8 elements over all of their range."""
    return lambda device: torch.randint(0, 256, shape, device=device).to(torch.uint8)


def masks(*shape: int) -> Any:
    """Bools, half of them true."""
    return lambda device: torch.randn(shape, device=device) > 0


def add_int8(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two quantised tensors, quantised again."""
    wide = x.float() * 0.02 + y.float() * 0.03
    return torch.round(wide / 0.04).clamp(-128, 127).to(torch.int8)


def normalize(x: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """An image as a model takes it."""
    return (x.float() / 255 - mean[:, None, None]) / deviation[:, None, None]


def scatter_rows(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Sums by position in each row."""
    return x.scatter_add(1, index, source)


CPU_KERNEL_CASES: dict[str, KernelCase] = {
    # Pointwise
    "relu_1k": KernelCase(lambda x: F.relu(x) + 1, args(randn(1024))),
    "gelu_mul_64k": KernelCase(gelu_mul, args(randn(1 << 16), randn(1 << 16))),
    "gelu_mul_odd": KernelCase(gelu_mul, args(randn(1_000_003), randn(1_000_003))),
    "gelu_mul": KernelCase(gelu_mul, args(randn(1 << 24), randn(1 << 24))),
    "add_relu": KernelCase(lambda x, y: F.relu(x + y), args(randn(1 << 24), randn(1 << 24))),
    "sin_tanh": KernelCase(lambda x: x.sin() * x.tanh(), args(randn(1 << 20))),
    "swiglu_bf16": KernelCase(
        swiglu, args(randn(1024, 4096, dtype=HALF), randn(1024, 4096, dtype=HALF))
    ),
    "add_relu_bf16": KernelCase(
        lambda x, y: F.relu(x + y), args(randn(1 << 24, dtype=HALF), randn(1 << 24, dtype=HALF))
    ),
    "bias_rows_odd": KernelCase(lambda x, b: F.relu(x + b), args(randn(1023, 4097), randn(4097))),
    "add_int8": KernelCase(add_int8, args(bytes_like(1 << 24), bytes_like(1 << 24))),
    "normalize_uint8": KernelCase(normalize, args(pixels(16, 3, 224, 224), randn(3), randn(3))),
    "masks": KernelCase(lambda x, m: (x > 0.5) & ~m, args(randn(1 << 22), masks(1 << 22))),
    "rotary_bf16": KernelCase(
        rotary,
        args(
            randn(4, 16, 512, 128, dtype=HALF),
            randn(512, 128, dtype=HALF),
            randn(512, 128, dtype=HALF),
        ),
    ),
    "rotary": KernelCase(rotary, args(randn(4, 16, 512, 64), randn(512, 64), randn(512, 64))),
    "dropout_add": KernelCase(dropout_add, args(randn(1 << 22), randn(1 << 22))),
    # Layout
    "transpose": KernelCase(lambda x: x.t().contiguous() + 1, args(randn(3072, 3072))),
    "transpose_bf16": KernelCase(
        lambda x: x.t().contiguous() * 2, args(randn(2048, 2048, dtype=HALF))
    ),
    "transpose_heads": KernelCase(
        lambda x: x.view(8, 512, 12, 64).transpose(1, 2).contiguous() * 2, args(randn(8, 512, 768))
    ),
    "to_channels_last": KernelCase(
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
        args(randn(16, 64, 56, 56)),
    ),
    "cat": KernelCase(
        lambda a, b, c: torch.cat([a.relu(), b * 2, c], 1),
        args(randn(1024, 1024), randn(1024, 1000), randn(1024, 1501)),
    ),
    "stack": KernelCase(
        lambda a, b: torch.stack([a * 2, b + 1], -1), args(randn(1 << 20), randn(1 << 20))
    ),
    "pad": KernelCase(lambda x: F.pad(x.relu(), (1, 1, 1, 1)), args(randn(16, 64, 56, 56))),
    # Reductions
    "sum": KernelCase(lambda x: (x * x).sum(), args(randn(1 << 24))),
    "sum_bf16": KernelCase(lambda x: x.float().sum(), args(randn(1 << 24, dtype=HALF))),
    "mean_var": KernelCase(lambda x: (x.mean(), x.var()), args(randn(1 << 22))),
    "row_sum_odd": KernelCase(lambda x: x.exp().sum(-1), args(randn(4096, 1027))),
    "column_sum": KernelCase(lambda x: x.sum(0), args(randn(16384, 1024))),
    "amax_int8": KernelCase(lambda x: x.amax(-1), args(bytes_like(4096, 4096))),
    "argmax": KernelCase(lambda x: x.argmax(-1), args(randn(512, 32000))),
    "argmax_columns": KernelCase(lambda x: x.argmax(1), args(randn(64, 64, 4096))),
    "softmax_1k": KernelCase(lambda x: x.softmax(-1), args(randn(8, 128))),
    "softmax": KernelCase(lambda x: x.softmax(-1), args(randn(16384, 1024))),
    "softmax_bf16_odd": KernelCase(lambda x: x.softmax(-1), args(randn(4096, 531, dtype=HALF))),
    "log_softmax": KernelCase(lambda x: x.log_softmax(-1), args(randn(128, 50257))),
    "cross_entropy": KernelCase(
        lambda x, y: F.cross_entropy(x, y), args(randn(256, 50257), ints(50257, 256))
    ),
    "cross_entropy_training": KernelCase(
        lambda x, y: F.cross_entropy(x, y),
        args(randn(256, 50257), ints(50257, 256)),
        training=True,
        bytes=3 * 256 * 50257 * 4,
    ),
    "quantize_int8": KernelCase(quantize_rows, args(randn(4096, 4096, dtype=HALF))),
    # Norms
    "layer_norm": KernelCase(layer_norm, args(randn(16384, 768), randn(768), randn(768))),
    "layer_norm_training": KernelCase(
        layer_norm, args(randn(4096, 768), randn(768), randn(768)), training=True
    ),
    "rms_norm_bf16": KernelCase(
        rms_norm, args(randn(4096, 4096, dtype=HALF), randn(4096, dtype=HALF))
    ),
    "rms_norm_training": KernelCase(
        rms_norm, args(randn(1024, 4096, dtype=HALF), randn(4096, dtype=HALF)), training=True
    ),
    "group_norm_silu": KernelCase(
        group_norm_silu, args(randn(2, 320, 64, 64), randn(320), randn(320))
    ),
    "batch_norm_training": KernelCase(
        batch_norm_relu, args(randn(16, 64, 56, 56), randn(64), randn(64)), training=True
    ),
    "batch_norm_channels_last": KernelCase(
        batch_norm_relu, args(rows_last(16, 64, 56, 56), randn(64), randn(64))
    ),
    # Scans and sorts
    "cumsum_rows": KernelCase(lambda x: x.cumsum(-1), args(randn(4096, 1024))),
    "cumsum_columns": KernelCase(lambda x: x.cumsum(0), args(randn(1024, 4096))),
    "cumsum_flat": KernelCase(lambda x: x.cumsum(0), args(randn(1 << 22))),
    "topk": KernelCase(lambda x: x.topk(8, -1), args(randn(8192, 64))),
    "sort": KernelCase(lambda x: x.sort(-1), args(randn(4096, 128))),
    # Windows
    "max_pool": KernelCase(lambda x: F.max_pool2d(x, 3, 2, 1), args(randn(8, 64, 112, 112))),
    "max_pool_channels_last": KernelCase(
        lambda x: F.max_pool2d(x, 3, 2, 1), args(rows_last(8, 64, 112, 112))
    ),
    "max_pool_training": KernelCase(
        lambda x: F.max_pool2d(x, 3, 2, 1), args(randn(8, 64, 112, 112)), training=True
    ),
    "avg_pool": KernelCase(lambda x: F.avg_pool2d(x, 2), args(randn(8, 64, 112, 112))),
    "adaptive_pool": KernelCase(
        lambda x: F.adaptive_avg_pool2d(x, 7), args(randn(16, 512, 30, 30))
    ),
    "nearest": KernelCase(lambda x: F.interpolate(x, scale_factor=2), args(randn(4, 64, 64, 64))),
    "bilinear": KernelCase(bilinear, args(randn(4, 64, 64, 64))),
    "bilinear_channels_last": KernelCase(bilinear, args(rows_last(4, 64, 64, 64))),
    "bicubic": KernelCase(
        lambda x: F.interpolate(x, size=(150, 150), mode="bicubic"), args(randn(4, 16, 100, 100))
    ),
    # Gathers and scatters
    "embedding": KernelCase(
        lambda w, i: F.embedding(i, w) * 2,
        args(randn(30522, 768), ints(30522, 8192)),
        bytes=2 * 8192 * 768 * 4,
    ),
    "embedding_training": KernelCase(
        lambda w, i: F.embedding(i, w),
        args(randn(30522, 768), ints(30522, 4096)),
        training=True,
        bytes=(3 * 4096 + 30522) * 768 * 4,
    ),
    "index_add": KernelCase(
        index_add,
        args(randn(4000, 512), ints(4000, 8192), randn(8192, 512)),
        bytes=(2 * 4000 + 8192) * 512 * 4,
    ),
    "scatter_rows": KernelCase(
        scatter_rows, args(randn(4096, 512), ints(512, 4096, 512), randn(4096, 512))
    ),
    "gather": KernelCase(
        lambda x, i: x.gather(-1, i) * 2, args(randn(4096, 1024), ints(1024, 4096, 512))
    ),
}
