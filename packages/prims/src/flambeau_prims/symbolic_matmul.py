"""matmul, linear and attention of fakes with symbolic sizes, in terms of mm, mv, dot, bmm, addmm.

Before torch 2.13 C++ composes these with concrete sizes, which would fix every symbolic size it
meets. The compositions here take the same kernels: a stack of matrices times one matrix is one big
product where the stack can be seen as a matrix without a copy, or must be for the sake of the
gradient; otherwise batches are broadcast and multiplied by bmm. Attention is composed here where
torch takes its math form.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.torch_version import TorchVersion

from flambeau_prims.fake import FakeTensor
from flambeau_prims.sizes import eq, known_eq
from flambeau_prims.sizes_node import to_symint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.sizes import Size


aten = torch.ops.aten


def needed() -> bool:
    """Whether this torch's C++ needs these replacements."""
    return TorchVersion(torch.__version__) < "2.13"


def fixes_sizes(*tensors: Any) -> bool:
    """Whether C++ would fix the symbolic sizes of one of these in a product."""
    return needed() and any(map(_is_symbolic, tensors))


def _is_symbolic(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.spec.env is not None


def matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """torch.matmul where one of the tensors has symbolic sizes."""
    if out is not None or not (_is_symbolic(input) or _is_symbolic(other)):
        return NotImplemented
    return _matmul(input, other)


def _reflected_matmul(input: Any, other: Any) -> Any:
    return matmul(other, input)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """F.linear where the input or the weight has symbolic sizes."""
    if not (_is_symbolic(input) or _is_symbolic(weight)):
        return NotImplemented
    if bias is None:
        return _matmul(input, weight.t())
    if input.dim() == 2:
        return torch.addmm(bias, input, weight.t())
    if input.dim() >= 3 and weight.dim() == 2 and bias.dim() == 1 and input.is_contiguous():
        rows = input.reshape(_product(input.shape[:-1]), input.shape[-1])
        return torch.addmm(bias, rows, weight.t()).view(*input.shape[:-1], weight.shape[0])
    return _matmul(input, weight.t()) + bias


def _matmul(left: Any, right: Any) -> Any:
    if left.dim() == 0 or right.dim() == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {left.dim()}D "
            f"and {right.dim()}D"
        )
    if right.dim() == 1 and left.dim() <= 2:
        return torch.dot(left, right) if left.dim() == 1 else torch.mv(left, right)
    if left.dim() == 1 and right.dim() == 2:
        return torch.mm(left.unsqueeze(0), right).squeeze(0)
    if left.dim() == 2 and right.dim() == 2:
        return torch.mm(left, right)
    if _folds(left, right):
        return _folded(left, right)
    return _batched(left, right)


def _folds(left: Any, right: Any) -> bool:
    """Whether the bigger side is to be taken as one matrix."""
    left_bigger = left.dim() >= right.dim()
    big, small = (left, right) if left_bigger else (right.mT, left)
    if small.dim() > 2:
        return False
    if small.requires_grad:
        return True
    if left.dim() == 2:
        # The stack is on the right: its transposed matrices would have to be copied back into
        # place.
        return False
    shape, stride = big.spec.shape, big.spec.stride
    inner = range(big.dim() - 2)
    return all(known_eq(stride[dim], stride[dim + 1] * shape[dim + 1]) for dim in inner)


def _folded(left: Any, right: Any) -> Any:
    if left.dim() >= right.dim():
        rows = left.reshape(_product(left.shape[:-1]), left.shape[-1])
        if right.dim() == 1:
            return torch.mv(rows, right).view(*left.shape[:-1])
        return torch.mm(rows, right).view(*left.shape[:-1], right.shape[-1])
    # (A B)^T = B^T A^T, with the stack on the left of the product; the copy gives the strides of a
    # plain product.
    stack = right.mT
    rows = stack.reshape(_product(stack.shape[:-1]), stack.shape[-1])
    if left.dim() == 1:
        return torch.mv(rows, left).view(*stack.shape[:-1])
    return torch.mm(rows, left.t()).view(*stack.shape[:-1], left.shape[0]).mT.contiguous()


def _batched(left: Any, right: Any) -> Any:
    vector_left, vector_right = left.dim() == 1, right.dim() == 1
    left = left.unsqueeze(0) if vector_left else left
    right = right.unsqueeze(-1) if vector_right else right
    batch = [to_symint(size) for size in _broadcast(left.spec.shape[:-2], right.spec.shape[:-2])]
    count = _product(batch)
    n, k = left.shape[-2:]
    m = right.shape[-1]
    product = torch.bmm(
        left.expand(*batch, n, k).reshape(count, n, k),
        right.expand(*batch, right.shape[-2], m).reshape(count, right.shape[-2], m),
    ).view(*batch, n, m)
    if vector_left:
        product = product.squeeze(-2)
    return product.squeeze(-1) if vector_right else product


def _broadcast(left: Sequence[Size], right: Sequence[Size]) -> list[Size]:
    """The common shape of two batch shapes."""
    result: list[Size] = []
    for a, b in zip_longest(reversed(left), reversed(right), fillvalue=1):
        if known_eq(a, 1) or known_eq(b, 1):
            result.append(b if known_eq(a, 1) else a)
        elif eq(a, b):
            result.append(a)
        else:
            raise RuntimeError(
                f"The batch sizes {list(left)} and {list(right)} of matmul's arguments do not match"
            )
    return result[::-1]


def _product(sizes: Sequence[Any]) -> Any:
    return reduce(lambda total, size: size * total, sizes, 1)


# Attention


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
    """scaled_dot_product_attention on a CPU with symbolic sizes, in the math form."""
    tensors = (query, key, value)
    if not any(map(_is_symbolic, tensors)) or not _takes_math(tensors, attn_mask, dropout_p):
        return NotImplemented
    if (is_causal and attn_mask is not None) or any(t.dtype != query.dtype for t in tensors):
        return NotImplemented  # C++ raises
    return math_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _takes_math(tensors: tuple[Any, ...], mask: Any, dropout_p: float) -> bool:
    """Whether the CPU's fused kernel, which has a rule for symbolic sizes, cannot take the call."""
    return (
        dropout_p > 0
        or (mask is not None and mask.requires_grad)
        or any(tensor.dim() != 4 for tensor in tensors)
        or not torch.backends.cuda.flash_sdp_enabled()
    )


def math_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """softmax(query @ key.mT * scale + mask) @ value; halves in float32 unless allowed."""
    if is_causal:
        shape = (query.shape[-2], key.shape[-2])
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        mask = additive_mask(mask, query)
    dtype = query.dtype
    in_half = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    if dtype in (torch.float16, torch.bfloat16) and not in_half:
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa:
        key, value = (repeat_heads(query, tensor) for tensor in (key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    factor = math.sqrt(abs(scale))
    keys = key.transpose(-2, -1) * factor
    scores = _multiply(query * math.copysign(factor, scale), keys)
    if mask is not None:
        scores = scores + mask
    weights = aten._safe_softmax(scores, -1)
    if dropout_p > 0:
        weights = _dropout(weights, dropout_p)
    return _multiply(weights, value).to(dtype)


def additive_mask(
    mask: torch.Tensor, query: torch.Tensor, ignored: float = -math.inf
) -> torch.Tensor:
    """A boolean mask as 0 where attended and `ignored` where not; other masks as they are."""
    if mask.dtype is not torch.bool:
        return mask
    yes, no = (
        torch.scalar_tensor(x, dtype=query.dtype, device=query.device) for x in (0.0, ignored)
    )
    return torch.where(mask, yes, no)


def repeat_heads(query: Any, tensor: Any) -> Any:
    """Keys or values of grouped heads, one for each head of the query."""
    times = query.shape[-3] // tensor.shape[-3]
    return tensor if times == 1 else tensor.repeat_interleave(times, -3)


def _multiply(left: Any, right: Any) -> Any:
    product = matmul(left, right) if needed() else NotImplemented
    return torch.matmul(left, right) if product is NotImplemented else product


def _dropout(weights: Any, p: float) -> Any:
    """As eager on the device; to C++ every GPU is `meta`, where it would draw as on a CPU."""
    if weights.is_cuda and p < 1:
        return torch.native_dropout(weights, p, True)[0]
    return torch.dropout(weights, p, True)


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    torch.matmul: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.__matmul__: matmul,
    torch.Tensor.__rmatmul__: _reflected_matmul,
    F.linear: linear,
    F.scaled_dot_product_attention: attention,
}
