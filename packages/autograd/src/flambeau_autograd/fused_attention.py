"""Compute attention that a program writes out by a fused kernel, as scaled_dot_product_attention
would, but with the results of what the program wrote.

    softmax(q @ kT * scale + mask) @ v      ->      aten._scaled_dot_product_..._attention(q, k, v,
                                                        mask, scale=scale)

The kernels differ from the program where all keys of a query are masked. With -inf, the program's
result is NaN: so it becomes here. With another number in place of scores, it is the mean of the
values: such queries are made zeros, and see all keys. The kernel of a CPU gives zeros where it
meets only NaN: what is not finite in a query is carried over. Leading dims that views regroup
between the masks are regrouped so that no mask is repeated, if possible. Results have the memory
order of the program's products.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.attention_masks import Refused, Regrouped, Seen, combined
from flambeau_autograd.torch_calls import call_of
from flambeau_prims import attention_kernels, symbolic_matmul
from flambeau_prims.sizes import gt, hint_of
from flambeau_prims.sizes_node import from_symint, to_symint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from flambeau_autograd.attention_masks import Leading
    from flambeau_autograd.match_attention import Attention

aten = torch.ops.aten

FEWEST_MASKED_SCORES, FEWEST_TRAINED_MASKED_SCORES = 96 * 96, 512 * 512
"""Below, for each head, products and softmax of a GPU are faster than a kernel that reads a mask,
and so they are, up to twice the length, in float32 with a backward.
"""
DTYPES_OF_CPU = (torch.float32, torch.float64)
"""In half precision, the products and the softmax of a CPU are faster apart."""
FEWEST_SCORES_OF_CPU, FEWEST_TRAINED_SCORES_OF_CPU = 128 * 128, 1024 * 1024
"""Below, for each head, so are those of floats; forward and backward together take longer."""


def fused_attention(attention: Attention, value_of: Callable[[fx.Node], Any]) -> Any:
    """The result of `attention` by one kernel; None if none takes the operands."""
    return _Call(attention, value_of).run()


class _Call:
    """One call: its operands become [batch, heads, length, width]."""

    def __init__(self, attention: Attention, value_of: Callable[[fx.Node], Any]) -> None:
        self.attention = attention
        self.value_of = value_of
        self.dtype: torch.dtype = attention.first.node.meta["spec"].dtype
        read = [attention.first.left, attention.first.right, attention.second.right]
        read += [mask.tensor for mask in attention.masks]
        self.trains = torch.is_grad_enabled() and any(value_of(x).requires_grad for x in read)

    def run(self) -> Any:
        device = self.value_of(self.attention.first.left).device.type
        if device not in ("cpu", "cuda"):
            return None
        try:
            # The operands are cast here, as autocast would.
            with torch.autocast(device, enabled=False):
                return self.call()
        except Refused:
            return None

    def call(self) -> Any:
        first, second = self.attention.first, self.attention.second
        start = _leading(first.node)
        end = _leading(second.left)
        if first.result_dims not in (None, tuple(range(len(start) + 2))):
            raise Refused
        if second.left_dims not in (None, tuple(range(len(end) + 2))):
            raise Refused
        if second.result_dims is None and _leading(second.node) != end:
            raise Refused
        queries = self.operand(first.left, first.left_dims)
        keys = self.operand(first.right, first.right_dims).transpose(-2, -1)
        values = self.operand(second.right, second.right_dims)
        self.check(queries, keys, values)
        stages = [start, *(mask.leading for mask in self.attention.masks), end]
        regrouped = Regrouped(stages)
        mask, blind, empty = self.mask(regrouped)
        regrouped.choose_split(mask)
        queries = regrouped.heads(queries, start)
        keys = regrouped.heads(keys, start)
        values = regrouped.heads(values, end)
        mask, blind, empty = (
            None if each is None else regrouped.joined(each) for each in (mask, blind, empty)
        )
        if blind is not None:
            queries = queries.masked_fill(blind, 0)
        out = self.kernel(queries, keys, values, mask)
        if empty is not None:
            out = out.masked_fill(empty, math.nan)
        if not out.is_cuda:
            out = out + (queries.detach() * 0).sum(-1, keepdim=True)
        out = out.reshape((*map(to_symint, end), *out.shape[2:])).contiguous()
        out = out if second.result_dims is None else out.permute(second.result_dims)
        if out.spec.stride != second.node.meta["spec"].stride:
            raise Refused  # dims of size 1, which einsum gives other strides
        return out

    def mask(self, regrouped: Regrouped) -> tuple[Any, Any, Any]:
        """The masks as one (see `combined`), as far as the kernel needs them."""
        attention = self.attention
        if not attention.masks or attention.seen in (Seen.ALL, Seen.CAUSAL):
            return None, None, None
        tensors = [self.value_of(mask.tensor) for mask in attention.masks]
        return combined(
            attention.masks,
            tensors,
            regrouped,
            self.dtype,
            each_sees=attention.seen is Seen.SOME,
            trains=self.trains,
        )

    def operand(self, node: fx.Node, dims: tuple[int, ...] | None) -> Any:
        tensor = self.value_of(node)
        tensor = tensor if dims is None else tensor.permute(dims)
        if tensor.requires_grad and torch.is_grad_enabled() and _views_input(node):
            tensor = _RowMajorGradient.apply(tensor)
        return tensor if tensor.dtype is self.dtype else tensor.to(self.dtype)

    def check(self, *tensors: Any) -> None:
        """Refuse empty operands: what they give is not worth a kernel."""
        for tensor in tensors:
            if not all(gt(from_symint(size), 0) for size in tensor.shape):
                raise Refused

    def kernel(self, queries: Any, keys: Any, values: Any, mask: Any) -> Any:
        queries, keys, values = (
            each if each.stride(-1) == 1 else each.contiguous() for each in (queries, keys, values)
        )
        scale = self.attention.scale
        causal = self.attention.seen is Seen.CAUSAL
        if mask is not None:
            rows, columns = queries.shape[-2], keys.shape[-2]
            mask = mask.expand(*mask.shape[:2], rows, columns)
        if queries.is_cuda:
            self.check_on_gpu(queries, keys, mask)
            out = attention_kernels.fused(queries, keys, values, mask, causal, scale)
            if out is None:
                raise Refused
            return out
        self.check_on_cpu(queries, keys, values, mask)
        if mask is not None:
            mask = symbolic_matmul.additive_mask(mask, queries)
        return aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, causal, attn_mask=mask, scale=scale
        )[0]

    def check_on_gpu(self, queries: Any, keys: Any, mask: Any) -> None:
        """Refuse what a kernel that reads a mask gains nothing by; and gradients in float32, which
        such kernels compute less exactly than the program's products, unless these may, too.
        """
        wide = self.dtype not in (torch.float16, torch.bfloat16)
        if self.trains and wide and torch.get_float32_matmul_precision() == "highest":
            raise Refused
        fewest = FEWEST_MASKED_SCORES
        if self.trains:
            fewest = FEWEST_TRAINED_MASKED_SCORES * (4 if wide else 1)
        if mask is not None and scores_of_head(queries, keys) < fewest:
            raise Refused

    def check_on_cpu(self, queries: Any, keys: Any, values: Any, mask: Any) -> None:
        """Refuse what the kernel of a CPU does not take, or gains nothing by."""
        if not torch.backends.cuda.flash_sdp_enabled() or self.dtype not in DTYPES_OF_CPU:
            raise Refused
        if mask is not None and mask.requires_grad:
            raise Refused
        if from_symint(values.shape[-1]) != from_symint(queries.shape[-1]):
            raise Refused
        fewest = FEWEST_TRAINED_SCORES_OF_CPU if self.trains else FEWEST_SCORES_OF_CPU
        if scores_of_head(queries, keys) < fewest:
            raise Refused


def scores_of_head(queries: Any, keys: Any) -> int:
    """How many scores each head has, about."""
    rows, columns = (hint_of(from_symint(each.shape[-2])) for each in (queries, keys))
    return rows * columns


class _RowMajorGradient(torch.autograd.Function):
    """The identity; the gradient is in the memory order that a product of matrices gives it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


_MOVES = ("transpose", "permute", "reshape", "copy")


def _views_input(node: fx.Node) -> bool:
    """Whether an operand is an input of the graph, whose gradient the caller sees, or a view."""
    while (call := call_of(node)) is not None and call.name in _MOVES:
        node = call.args["input"]
    return node.op == "placeholder"


def _leading(node: fx.Node) -> Leading:
    return node.meta["spec"].shape[:-2]
