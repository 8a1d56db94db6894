"""Quantisation as exported graphs write it (`torch.ops.quantized_decomposed`).

    q = quantize_per_tensor(x, 0.02, 127, 0, 255, uint8)
    ->  q = cast(minimum(maximum(add(round(mul(x, 50.0)), 127), 0), 255), uint8)

Registered once a graph has such an operator: the library that defines them is not torch's core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.ao.quantization.fx._decomposed  # defines the operators

from flambeau_prims.decompositions.pointwise import clip
from flambeau_prims.decompositions.reduction import aminmax
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder, Operand

quantised = torch.ops.quantized_decomposed
per_tensor, back_per_tensor = quantised.quantize_per_tensor, quantised.dequantize_per_tensor

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32)


@decomposition(per_tensor.default, per_tensor.tensor)
def quantize_per_tensor(
    b: Builder, x: Value, scale: Operand, zero_point: Operand, low: int, high: int,
    dtype: torch.dtype,
) -> Value:  # fmt: skip
    """x / scale, rounded, + zero point, within the bounds."""
    if dtype not in DTYPES or _refused(x, dtype, low, high) or not _is_one(scale, zero_point):
        return NotImplemented
    x = b.cast(x, torch.float32)
    inverse = b.div(1.0, scale) if isinstance(scale, Value) else 1.0 / scale
    rounded = b.round(b.mul(x, _spread(b, inverse, x)))
    shifted = b.add(rounded, _spread(b, zero_point, x))
    return b.cast(clip(b, shifted, low, high), dtype)


@decomposition(back_per_tensor.default, back_per_tensor.tensor)
def dequantize_per_tensor(
    b: Builder, x: Value, scale: Operand, zero_point: Operand, low: int, high: int,
    dtype: torch.dtype, *, out_dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """(x - zero point) * scale."""
    if x.spec.dtype is not dtype or dtype not in DTYPES or not _is_one(scale, zero_point):
        return NotImplemented
    if out_dtype not in (None, torch.float32):
        return NotImplemented
    x = b.cast(x, torch.float32)
    return b.mul(b.sub(x, _spread(b, zero_point, x)), _spread(b, scale, x))


@decomposition(quantised.quantize_per_channel.default)
def quantize_per_channel(
    b: Builder, x: Value, scales: Value, zero_points: Value, axis: int, low: int, high: int,
    dtype: torch.dtype,
) -> Value:  # fmt: skip
    """As for a tensor, with a scale and a zero point for each index of `axis`."""
    if dtype not in DTYPES or _refused(x, dtype, low, high) or not _is_axis(axis, x, scales):
        return NotImplemented
    if not _is_axis(axis, x, zero_points) or scales.spec.dtype is not torch.float32:
        return NotImplemented
    x, (axis,) = b.cast(x, torch.float32), (axis % x.spec.ndim,)
    rounded = b.round(b.mul(x, b.along(b.div(1.0, scales), [axis], x.spec.shape)))
    zero = b.along(b.cast(zero_points, torch.float32), [axis], x.spec.shape)
    return b.cast(clip(b, b.add(rounded, zero), low, high), dtype)


@decomposition(quantised.dequantize_per_channel.default)
def dequantize_per_channel(
    b: Builder, x: Value, scales: Value, zero_points: Value | None, axis: int, low: int, high: int,
    dtype: torch.dtype, *, out_dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """(x - zero point) * scale, with those of each index of `axis`."""
    if x.spec.dtype is not dtype or dtype not in DTYPES or not _is_axis(axis, x, scales):
        return NotImplemented
    if out_dtype not in (None, torch.float32) or not _fits(dtype, low, high):
        return NotImplemented
    axis %= x.spec.ndim
    if zero_points is not None:
        if not _is_axis(axis, x, zero_points):
            return NotImplemented
        x, zero = b.promote([x, b.along(zero_points, [axis], x.spec.shape)])
        x = b.sub(x, zero)
    x, scale = b.promote([x, b.along(scales, [axis], x.spec.shape)])
    return b.cast(b.mul(x, scale), torch.float32)


@decomposition(quantised.choose_qparams.tensor)
def choose_qparams(
    b: Builder, x: Value, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Value, Value]:
    """The scale and the zero point with which the numbers of x, and 0, fit between the bounds."""
    if x.spec.dtype is not torch.float32 or dtype not in DTYPES or high <= low:
        return NotImplemented
    if not low <= 0 <= high or any(size == 0 for size in x.spec.shape):
        return NotImplemented
    least, greatest = aminmax(b, x)
    least, greatest = b.minimum(least, 0.0), b.maximum(greatest, 0.0)
    eps = torch.tensor(eps, dtype=torch.float32).item()
    scale = b.maximum(b.div(b.sub(greatest, least), float(high - low)), eps)
    rounded = b.cast(b.round(b.div(least, scale)), torch.int32)
    zero = b.minimum(b.maximum(b.sub(low, rounded), low), high)
    return (
        b.unsqueeze(b.cast(scale, torch.float64), 0), b.unsqueeze(b.cast(zero, torch.int64), 0)
    )  # fmt: skip


def _spread(b: Builder, number: Operand, x: Value) -> Operand:
    """A number, or a tensor of one element, as an operand beside x."""
    if not isinstance(number, Value):
        return float(number)
    number = b.squeeze(number, tuple(range(number.spec.ndim)))
    return b.expand(b.cast(number, torch.float32), x.spec.shape)


def _is_one(*numbers: Operand) -> bool:
    return all(
        not isinstance(each, Value) or all(size == 1 for size in each.spec.shape)
        for each in numbers
    )


def _is_axis(axis: int, x: Value, numbers: Value) -> bool:
    return 0 <= axis < x.spec.ndim and numbers.spec.shape == (x.spec.shape[axis],)


def _fits(dtype: torch.dtype, low: int, high: int) -> bool:
    known = torch.iinfo(dtype)
    return known.min <= low and high <= known.max


def _refused(x: Value, dtype: torch.dtype, low: int, high: int) -> bool:
    """Whether eager raises."""
    known = (torch.float32, torch.float16, torch.bfloat16)
    return x.spec.dtype not in known or not _fits(dtype, low, high)
