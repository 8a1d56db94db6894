"""matmul and linear of fakes with symbolic sizes, in terms of mm, mv, dot, bmm and addmm.

Before torch 2.13 C++ composes these with concrete sizes, which would fix every symbolic size it
meets. The compositions here take the same kernels: a stack of matrices times one matrix is one big
product where the stack can be seen as a matrix without a copy, or must be for the sake of the
gradient; otherwise batches are broadcast and multiplied by bmm.
"""

from __future__ import annotations

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


def needed() -> bool:
    """Whether this torch's C++ needs these replacements."""
    return TorchVersion(torch.__version__) < "2.13"


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
    found: list[Size] = []
    for a, b in zip_longest(reversed(left), reversed(right), fillvalue=1):
        if known_eq(a, 1) or known_eq(b, 1):
            found.append(b if known_eq(a, 1) else a)
        elif eq(a, b):
            found.append(a)
        else:
            raise RuntimeError(
                f"The batch sizes {list(left)} and {list(right)} of matmul's arguments do not match"
            )
    return found[::-1]


def _product(sizes: Sequence[Any]) -> Any:
    return reduce(lambda total, size: size * total, sizes, 1)


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    torch.matmul: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.__matmul__: matmul,
    torch.Tensor.__rmatmul__: _reflected_matmul,
    F.linear: linear,
}
