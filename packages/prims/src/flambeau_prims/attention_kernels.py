"""scaled_dot_product_attention on a GPU: by the kernel that eager takes.

    F.scaled_dot_product_attention(q, k, v, mask)  ->  aten._scaled_dot_product_..._attention(...)

Eager's C++ chooses among the kernels of cuDNN, flash attention, memory-efficient attention and the
math form. It looks at the operands' geometry and dtypes, at which of them need gradients, at the
switches of `torch.backends.cuda` and `torch.nn.attention.sdpa_kernel`, at the versions of its
libraries and at the GPU. Where there is a GPU, C++ itself is asked (`torch._fused_sdp_choice`)
about tensors without memory. Where there is none, `modelled_kernel` stands in.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from flambeau_prims import symbolic_matmul
from flambeau_prims.fake import FakeTensor
from flambeau_prims.known_masks import Mask, current_tape, known_mask
from flambeau_prims.sizes_node import from_symint

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

SDPBackend = torch._C._SDPBackend

_HALVES = (torch.float16, torch.bfloat16)
_CUDNN_FILLS_FINITE = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12)
"""Whether eager converts a boolean mask for cuDNN to a finite number where it masks: a row without
any attended key then attends to all keys alike.
"""
_LEAST_HALF = -65504.0


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """scaled_dot_product_attention by the kernel that eager chooses; the math form is C++'s own,
    unless it would draw as on a CPU or fix symbolic sizes.
    """
    if not isinstance(query, FakeTensor) or not query.is_cuda:
        return NotImplemented
    operands = (query, key, value, attn_mask)
    invalid = is_causal and attn_mask is not None
    if not (invalid or enable_gqa):
        unmasked = _without_known_mask(operands, dropout_p, scale)
        if unmasked is not None:
            return unmasked
    chosen = SDPBackend.MATH
    if not invalid:
        chosen = choose_kernel(operands, dropout_p, is_causal, scale, enable_gqa)
    if chosen in _FULLY_GROUPED:
        return _by(chosen, query, key, value, attn_mask, dropout_p, is_causal, scale)
    if enable_gqa:
        key, value = (symbolic_matmul.repeat_heads(query, tensor) for tensor in (key, value))
        if not invalid and dropout_p == 0:
            # Eager's efficient kernel takes no grouped heads, but once they are repeated it may.
            operands = (query, key, value, attn_mask)
            chosen = choose_kernel(operands, dropout_p, is_causal, scale, False)
    if chosen == SDPBackend.EFFICIENT_ATTENTION:
        return _by(chosen, query, key, value, attn_mask, dropout_p, is_causal, scale)
    if not invalid and (dropout_p > 0 or symbolic_matmul.fixes_sizes(query, key, value)):
        return symbolic_matmul.math_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, False
        )
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )


def fused(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float) -> Any:
    """scaled_dot_product_attention without dropout by a fused kernel; None if eager takes none."""
    try:
        chosen = choose_kernel((query, key, value, mask), 0.0, is_causal, scale, False)
    except RuntimeError:  # the switches leave no kernel
        return None
    if chosen != SDPBackend.EFFICIENT_ATTENTION and chosen not in _FULLY_GROUPED:
        return None
    return _by(chosen, query, key, value, mask, 0.0, is_causal, scale)


# 1. The choice


def choose_kernel(
    operands: tuple[Any, Any, Any, Any],
    dropout_p: float,
    is_causal: bool,
    scale: Any,
    grouped: bool,
) -> Any:
    """The kernel, a torch.nn.attention.SDPBackend, that eager takes for query, key, value and mask.

    Raises RuntimeError as eager does if the switches leave none that fits.
    """
    if not torch.cuda.is_available():
        return modelled_kernel(*operands, is_causal, grouped)
    query, key, value, mask = map(_without_memory, operands)
    with torch._C._DisableTorchDispatch():
        return SDPBackend(
            torch._fused_sdp_choice(
                query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=grouped
            )
        )


class _WithoutMemory(torch.Tensor):
    """A tensor of a device that C++ can ask for its geometry, and for nothing else."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} was called on a tensor without memory")


def _without_memory(fake: Any) -> Any:
    if not isinstance(fake, FakeTensor):
        return fake
    return torch.Tensor._make_wrapper_subclass(  # type: ignore[call-arg]
        _WithoutMemory,
        fake.shape,
        fake.stride(),
        fake.storage_offset(),
        None,
        fake.dtype,
        torch.strided,
        fake.spec.device,
        False,
        fake.requires_grad,
    )


def modelled_kernel(
    query: FakeTensor, key: FakeTensor, value: FakeTensor, mask: Any, is_causal: bool, grouped: bool
) -> Any:
    """Eager's choice on a Hopper GPU, as far as it is known without one: no order of preference,
    and cuDNN's kernel never.
    """
    if _flash_fits(query, key, value, mask, grouped):
        return SDPBackend.FLASH_ATTENTION
    if grouped:
        key, value = (symbolic_matmul.repeat_heads(query, tensor) for tensor in (key, value))
    if _efficient_fits(query, key, value, mask, is_causal):
        return SDPBackend.EFFICIENT_ATTENTION
    return SDPBackend.MATH


def _fits_any(
    tensors: Sequence[FakeTensor], dtypes: tuple[torch.dtype, ...], grouped: bool = False
) -> bool:
    """Both fused kernels need 4-dim tensors of one batch and head count, dense and not empty."""
    query, key, value = tensors
    if any(t.dim() != 4 or t.dtype not in dtypes or t.dtype != query.dtype for t in tensors):
        return False
    if any(t.stride(-1) != 1 for t in tensors) or any(t.shape[2] == 0 for t in tensors):
        return False
    if grouped:
        return key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    return all(t.shape[0] == query.shape[0] and t.shape[1] == query.shape[1] for t in (key, value))


def _flash_fits(
    query: FakeTensor, key: FakeTensor, value: FakeTensor, mask: Any, grouped: bool
) -> bool:
    """Half precision, no mask, equal head sizes up to 256."""
    if not torch.backends.cuda.flash_sdp_enabled() or mask is not None:
        return False
    if not _fits_any((query, key, value), _HALVES, grouped):
        return False
    size = query.shape[3]
    return size <= 256 and size == key.shape[3] == value.shape[3]


def _efficient_fits(
    query: FakeTensor, key: FakeTensor, value: FakeTensor, mask: Any, is_causal: bool
) -> bool:
    """float32 and masks too, aligned heads."""
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or (mask is not None and is_causal):
        return False
    if not _fits_any((query, key, value), (*_HALVES, torch.float32)):
        return False
    alignment = 4 if query.dtype is torch.float32 else 8
    if query.shape[3] % alignment or value.shape[3] % alignment or query.shape[3] != key.shape[3]:
        return False
    return mask is None or (mask.stride(-1) == 1 and mask.dtype in (torch.bool, query.dtype))


# 2. Masks that say nothing, or that each position attends to those before it


def _without_known_mask(
    operands: tuple[Any, Any, Any, Any], dropout_p: float, scale: float | None
) -> Any:
    """The attention without a mask that is known, by a kernel for that, laid out as with the mask;
    None if the mask is not known, or if only the math form can do without.

    The kernels draw dropout's random numbers each in its own way: with dropout it is for programs
    that know that they are compiled. Eagerly they leave such masks out themselves.
    """
    query, key, value, mask = operands
    tape = current_tape()
    if tape is None or not isinstance(mask, FakeTensor) or mask.requires_grad:
        return None
    if dropout_p > 0 and not tape.observed_is_compiling:
        return None
    if not _fits_any((query, key, value), (*_HALVES, torch.float32)):
        return None
    scores = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if not all(type(size) is int for size in (*scores, *mask.shape)):
        return None
    known = known_mask(mask, tape)
    if known is None or not _broadcasts(mask.shape, scores):
        return None
    causal = known is Mask.CAUSAL
    if causal and mask.shape[-2:] != scores[-2:]:
        return None
    if choose_kernel((query, key, value, None), dropout_p, causal, scale, False) == SDPBackend.MATH:
        return None
    order = _order_of_result(choose_kernel(operands, dropout_p, False, scale, False), query)
    result = attention(query, key, value, None, dropout_p, causal, scale)
    back = sorted(range(4), key=order.__getitem__)
    return result.permute(order).contiguous().permute(back)


def _broadcasts(shape: Sequence[int], scores: Sequence[int]) -> bool:
    if len(shape) > len(scores):
        return False
    last = scores[len(scores) - len(shape) :]
    return all(size in (1, whole) for size, whole in zip(shape, last, strict=True))


def _order_of_result(chosen: Any, query: Any) -> list[int]:
    """The dims of a kernel's result, outermost in memory first."""
    if chosen == SDPBackend.MATH:
        return [0, 1, 2, 3]
    if chosen == SDPBackend.EFFICIENT_ATTENTION:
        return [0, 2, 1, 3]
    return sorted(range(4), key=query.stride().__getitem__, reverse=True)


# 3. The calls, as eager's C++ makes them

_FULLY_GROUPED = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
"""The kernels that take grouped heads."""


def _by(
    kernel: Any, query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool,
    scale: Any,
) -> Any:  # fmt: skip
    if kernel == SDPBackend.CUDNN_ATTENTION:
        return _cudnn(query, key, value, mask, dropout_p, is_causal, scale)
    if kernel == SDPBackend.FLASH_ATTENTION:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    return _efficient(query, key, value, mask, dropout_p, is_causal, scale)


def _cudnn(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Any
) -> Any:
    if mask is not None:
        fill = _LEAST_HALF if _CUDNN_FILLS_FINITE else -math.inf
        # The kernel reads every mask as the query's dtype.
        mask = symbolic_matmul.additive_mask(mask, query, fill).to(query.dtype)
    kept = _needs_grad(query, key, value)
    if kept:
        dropout_p = _with_a_plan_apart(dropout_p)
    result = aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, kept, dropout_p, is_causal, False, scale=scale
    )[0]
    if kept:
        _lay_out_gradient(result)
    return result


def _lay_out_gradient(result: torch.Tensor) -> None:
    """Have cuDNN's backward read a gradient that is laid out as the result.

    ATen keeps cuDNN's plan of a backward by the operands, not by the strides of the gradient
    (PyTorch 2.11): after a row-major gradient one with heads inside is read in the wrong order.
    """
    strides = result.stride()
    order = sorted(range(4), key=strides.__getitem__, reverse=True)
    back = sorted(range(4), key=order.__getitem__)

    def lay_out(gradient: torch.Tensor) -> torch.Tensor:
        if gradient.stride() == strides:
            return gradient
        return gradient.permute(order).contiguous().permute(back)

    result.register_hook(lay_out)


def _with_a_plan_apart(dropout_p: float) -> float:
    """The probability with other bits, so that eager calls have separate plans: the gradients that
    they read may be laid out otherwise.

    Zero becomes -0.0 (in the backward; of the forward torch leaves it out, as a default). Others
    become the next smaller float32, by which the share of kept elements changes by 2^-24 of it.
    """
    (bits,) = struct.unpack("I", struct.pack("f", dropout_p))
    (smaller,) = struct.unpack("f", struct.pack("I", bits - 1 if bits else 1 << 31))
    return float(smaller)


def _flash(
    query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> Any:
    size = query.shape[3]
    scale = 1.0 / math.sqrt(size) if scale is None else scale
    if size % 8:
        padding = (0, 8 - size % 8)
        query, key, value = (F.pad(tensor, padding) for tensor in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :size] if size % 8 else out


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Any
) -> Any:
    kept = _needs_grad(query, key, value)
    if mask is not None:
        mask = symbolic_matmul.additive_mask(mask, query)
        mask = _aligned(mask).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        kept = kept or _needs_grad(mask)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, kept, dropout_p, is_causal, scale=scale
    )[0]


def _needs_grad(*tensors: Any) -> bool:
    """Whether the logarithms of the softmax's denominators are kept for a backward."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """The mask in rows of a multiple of 8 elements, as the kernel reads them."""
    size = from_symint(mask.shape[-1])
    if isinstance(size, int) and size % 8 == 0:
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, -length % 8))[..., :length]
