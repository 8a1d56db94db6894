"""Shape rules of fused attention: the CPU kernel and the CUDA ones, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ceil_div, eq
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import dense_stride, preserved_stride, same_shape

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten


def heads_inside(like: Spec, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> Spec:
    """[b, h, s, ...] stored as [b, s, h, ...]."""
    batch, heads, length, *rest = shape
    inner = Spec.of((batch, length, heads, *rest)).stride
    return like.fresh(shape, (inner[0], inner[2], inner[1], *inner[3:]), dtype=dtype)


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


# 1. CPU


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_for_cpu(query: Spec, key: Spec, value: Spec) -> tuple[Spec, Spec]:
    """The result, laid out as the query, and log softmax denominators, heads inside."""
    _check(query, key, value)
    reduced = query.dtype in (torch.float16, torch.bfloat16)
    sums = heads_inside(query, query.shape[:3], torch.float32 if reduced else query.dtype)
    return query.fresh(stride=preserved_stride(query)), sums


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_for_cpu_backward(query: Spec, key: Spec, value: Spec) -> tuple[Spec, ...]:
    """Gradients of query, key and value, heads inside."""
    return tuple(heads_inside(spec, spec.shape) for spec in (query, key, value))


# 2. CUDA


def _transposed_like(spec: Spec, shape: tuple[Size, ...]) -> Spec:
    """empty_like of the [b, s, h, d] view, seen as [b, h, s, d] again."""
    stride = spec.stride
    view = spec.fresh(
        (shape[0], shape[2], shape[1], shape[3]), (stride[0], stride[2], stride[1], stride[3])
    )
    kept = preserved_stride(view)
    return spec.fresh(shape, (kept[0], kept[2], kept[1], kept[3]))


@rule(aten._scaled_dot_product_flash_attention.default)
def flash_attention(query: Spec, key: Spec, value: Spec) -> tuple[Any, ...]:
    """output, logsumexp, cumulative lengths, longest lengths, random state, unused, mask."""
    _check(query, key, value)
    sums = query.fresh(query.shape[:3], dtype=torch.float32)
    state, unused = (query.fresh(shape, dtype=torch.uint64) for shape in ((2,), ()))
    lengths = (None, None, query.shape[2], key.shape[2])
    return _transposed_like(query, query.shape), sums, *lengths, state, unused, query.fresh((0,))


@rule(
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
)
def flash_attention_backward(query: Spec, key: Spec, value: Spec) -> tuple[Spec, ...]:
    """Gradients of query, key and value, laid out as these are."""
    return tuple(_transposed_like(spec, spec.shape) for spec in (query, key, value))


@rule(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(
    query: Spec, key: Spec, value: Spec, compute_log_sumexp: bool
) -> tuple[Spec, Spec, Spec, Spec]:
    """output (heads inside), logsumexp padded to rows of 32, random seed and offset."""
    _check(query, key, value)
    batch, heads, length, _ = query.shape
    out = heads_inside(query, (batch, heads, length, value.shape[3]))
    return out, *_efficient_state(query, batch, heads, length, compute_log_sumexp)


def _efficient_state(
    query: Spec, batch: Size, heads: Size, rows: Size, kept: bool
) -> tuple[Spec, Spec, Spec]:
    padded = ceil_div(rows, 32) * 32 if kept else 0
    state = Spec.of((), dtype=torch.int64)
    return query.fresh((batch, heads, padded), dtype=torch.float32), state, state


@rule(aten._efficient_attention_forward.default)
def efficient_attention_forward(
    query: Spec,
    key: Spec,
    value: Spec,
    cu_seqlens_q: Spec | None,
    max_seqlen_q: Size | None,
    max_seqlen_k: Size | None,
    compute_log_sumexp: bool,
) -> tuple[Any, ...]:
    """As above, of [b, s, h, d] or of sequences in one row; and the longest lengths."""
    batch, rows, heads, _ = query.shape
    if cu_seqlens_q is not None:
        if max_seqlen_q is None:
            raise RuntimeError("_efficient_attention_forward: max_seqlen_q is missing")
        batch, rows = cu_seqlens_q.shape[0] - 1, max_seqlen_q
    return (
        query.fresh((*query.shape[:3], value.shape[3])),
        *_efficient_state(query, batch, heads, rows, compute_log_sumexp),
        rows,
        key.shape[1] if max_seqlen_k is None else max_seqlen_k,
    )


@rule(aten._efficient_attention_backward.default)
def efficient_attention_backward_of_rows(
    query: Spec,
    key: Spec,
    value: Spec,
    bias: Spec | None,
    bias_requires_grad: bool,
    shared_storage_dqdkdv: bool,
) -> tuple[Spec | None, ...]:
    """Row-major gradients of query, key and value, or slices of one tensor of the three; that of
    the bias.
    """
    grads = [spec.fresh() for spec in (query, key, value)]
    if shared_storage_dqdkdv:
        *outer, heads, size = query.shape
        step = contiguous_stride((*outer, 3, heads, size))
        grads = [
            grad.replace(stride=(*step[:-3], *step[-2:]), offset=number * step[-3])
            for number, grad in enumerate(grads)
        ]
    of_bias = None if bias is None or not bias_requires_grad else _bias_gradient(bias)
    return *grads, of_bias


def _bias_gradient(bias: Spec) -> Spec:
    """The kernel writes rows aligned to 16 elements, of which the result is a slice."""
    rows = (*bias.shape[:-1], ceil_div(bias.shape[-1], 16) * 16)
    return bias.replace(stride=contiguous_stride(rows), offset=0)


@rule(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_attention_backward(
    query: Spec, key: Spec, value: Spec, attn_bias: Spec | None, grad_input_mask: tuple[bool, ...]
) -> tuple[Spec | None, ...]:
    """Gradients of query, key, value (heads inside) and of the bias."""
    bias = None
    if attn_bias is not None and grad_input_mask[3]:
        bias = _bias_gradient(attn_bias)
    return (*(heads_inside(spec, spec.shape) for spec in (query, key, value)), bias)


@rule(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_attention(
    query: Spec, key: Spec, value: Spec, compute_log_sumexp: bool
) -> tuple[Any, ...]:
    """output, logsumexp, cumulative lengths, longest lengths, random seed, offset, mask."""
    _check(query, key, value)
    shape = (*query.shape[:3], value.shape[3])
    same_width = eq(query.shape[3], value.shape[3])
    ordered = query.fresh(shape, dense_stride(shape, query.stride))
    out = _transposed_like(query, shape) if same_width else ordered
    sums = query.fresh((*query.shape[:3], 1), dtype=torch.float32) if compute_log_sumexp else None
    state = query.fresh((), dtype=torch.int64)
    return out, sums, None, None, query.shape[2], key.shape[2], state, state, None
