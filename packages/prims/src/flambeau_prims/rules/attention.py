"""Shape rules of fused scaled-dot-product attention: the CPU kernel and the CUDA ones, forward and
backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ceil_div, eq
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import preserved_stride, same_shape

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten


def heads_inside(like: Spec, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> Spec:
    """[b, h, s, ...] stored as [b, s, h, ...]."""
    batch, heads, length, *rest = shape
    inner = Spec.of((batch, length, heads, *rest)).stride
    return Spec.of(
        shape,
        stride=(inner[0], inner[2], inner[1], *inner[3:]),
        dtype=dtype or like.dtype,
        device=like.device,
    )


def _check(query: Spec, key: Spec, value: Spec) -> None:
    for spec in (query, key, value):
        if spec.ndim != 4:
            raise RuntimeError(
                f"scaled_dot_product_attention: expected 4-dimensional query, key and "
                f"value, got {list(spec.shape)}"
            )
        if spec.dtype != query.dtype:
            raise RuntimeError(
                "Expected query, key, and value to have the same dtype, but got "
                f"{dtype_name(query.dtype)} and {dtype_name(spec.dtype)}"
            )
    if not eq(query.shape[3], key.shape[3]) or not same_shape(key.shape[:3], value.shape[:3]):
        raise RuntimeError(
            f"scaled_dot_product_attention: shapes {list(query.shape)}, {list(key.shape)} "
            f"and {list(value.shape)} do not match"
        )


def _accumulated_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


# 1. CPU


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_for_cpu(
    query: Spec,
    key: Spec,
    value: Spec,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Spec | None = None,
    scale: float | None = None,
) -> tuple[Spec, Spec]:
    """The result, laid out as the query, and the logarithms of the softmax denominators, heads
    inside.
    """
    _check(query, key, value)
    batch, heads, length, _ = query.shape
    out = query.replace(stride=preserved_stride(query), offset=0)
    return out, heads_inside(query, (batch, heads, length), _accumulated_in(query.dtype))


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_for_cpu_backward(
    grad_out: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    out: Spec,
    logsumexp: Spec,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Spec | None = None,
    scale: float | None = None,
) -> tuple[Spec, Spec, Spec]:
    """Gradients of query, key and value, heads inside."""
    return (
        heads_inside(query, query.shape),
        heads_inside(key, key.shape),
        heads_inside(value, value.shape),
    )


# 2. CUDA


def _transposed_like(spec: Spec, shape: tuple[Size, ...]) -> Spec:
    """empty_like of the [b, s, h, d] view, seen as [b, h, s, d] again."""
    stride = spec.stride
    view = Spec.of(
        (shape[0], shape[2], shape[1], shape[3]),
        stride=(stride[0], stride[2], stride[1], stride[3]),
        dtype=spec.dtype,
        device=spec.device,
    )
    kept = preserved_stride(view)
    return Spec.of(
        shape, stride=(kept[0], kept[2], kept[1], kept[3]), dtype=spec.dtype, device=spec.device
    )


@rule(aten._scaled_dot_product_flash_attention.default)
def flash_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """output, logsumexp, cumulative lengths (none), longest lengths, random state, its unused half,
    debug mask.
    """
    _check(query, key, value)
    batch, heads, length, _ = query.shape
    device = query.device
    return (
        _transposed_like(query, query.shape),
        Spec.of((batch, heads, length), dtype=torch.float32, device=device),
        None,
        None,
        length,
        key.shape[2],
        Spec.of((2,), dtype=torch.uint64, device=device),
        Spec.of((), dtype=torch.uint64, device=device),
        Spec.of((0,), dtype=query.dtype, device=device),
    )


@rule(aten._scaled_dot_product_flash_attention_backward.default)
def flash_attention_backward(
    grad_out: Spec, query: Spec, key: Spec, value: Spec, *_rest: Any, **_options: Any
) -> tuple[Spec, Spec, Spec]:
    """Gradients of query, key and value, laid out as these are."""
    return (
        _transposed_like(query, query.shape),
        _transposed_like(key, key.shape),
        _transposed_like(value, value.shape),
    )


@rule(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Spec, Spec, Spec, Spec]:
    """output (heads inside), logsumexp padded to rows of 32, random seed and offset."""
    _check(query, key, value)
    batch, heads, length, _ = query.shape
    padded = ceil_div(length, 32) * 32 if compute_log_sumexp else 0
    state = Spec.of((), dtype=torch.int64, device=torch.device("cpu"))
    return (
        heads_inside(query, (batch, heads, length, value.shape[3])),
        Spec.of((batch, heads, padded), dtype=torch.float32, device=query.device),
        state,
        state,
    )


@rule(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_attention_backward(
    grad_out_: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    out: Spec,
    logsumexp: Spec,
    philox_seed: Spec,
    philox_offset: Spec,
    dropout_p: float,
    grad_input_mask: tuple[bool, ...],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Spec | None, ...]:
    """Gradients of query, key, value (heads inside) and of the bias."""
    bias = None
    if attn_bias is not None and grad_input_mask[3]:
        # The kernel writes rows aligned to 16 elements, of which the result is a slice.
        rows = (*attn_bias.shape[:-1], ceil_div(attn_bias.shape[-1], 16) * 16)
        bias = attn_bias.replace(stride=contiguous_stride(rows), offset=0)
    return (
        heads_inside(query, query.shape),
        heads_inside(key, key.shape),
        heads_inside(value, value.shape),
        bias,
    )


@rule(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """output, logsumexp, cumulative lengths (none), longest lengths, random seed and offset, debug
    mask (none).
    """
    _check(query, key, value)
    batch, heads, length, _ = query.shape
    shape = (batch, heads, length, value.shape[3])
    logsumexp = Spec.of((batch, heads, length, 1), dtype=torch.float32, device=query.device)
    state = Spec.of((), dtype=torch.int64, device=query.device)
    out = (
        _transposed_like(query, shape)
        if eq(query.shape[3], value.shape[3])
        else heads_inside(query, shape)
    )
    return (
        out,
        logsumexp if compute_log_sumexp else None,
        None,
        None,
        length,
        key.shape[2],
        state,
        state,
        None,
    )


@rule(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_attention_backward(
    grad_out: Spec, query: Spec, key: Spec, value: Spec, *_rest: Any, **_options: Any
) -> tuple[Spec, Spec, Spec]:
    """Gradients of query, key and value, laid out as these are."""
    return (
        _transposed_like(query, query.shape),
        _transposed_like(key, key.shape),
        _transposed_like(value, value.shape),
    )
