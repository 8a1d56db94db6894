"""What every primitive computes, in plain eager PyTorch: the reference that compiled code is tested
against.

Results may come in any strides; `evaluate.run_graph` lays fresh results out as their Value's Spec
says.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def pointwise(name: str) -> Callable[..., Tensor]:
    """The reference of a pointwise primitive: numbers become 0-dim tensors of the operands' dtype,
    and torch does the rest.
    """
    function = _POINTWISE.get(name) or getattr(torch, name)

    def reference(*operands: Any) -> Tensor:
        like = next(operand for operand in operands if isinstance(operand, torch.Tensor))
        return function(*(_as_tensor(operand, like) for operand in operands))

    return reference


def _as_tensor(operand: Any, like: Tensor) -> Tensor:
    if isinstance(operand, torch.Tensor):
        return operand
    if isinstance(operand, float) and like.dtype.is_floating_point:
        # A number too great for the dtype is infinite; torch.full would refuse it.
        return torch.full((), operand, dtype=torch.float64, device=like.device).to(like.dtype)
    return torch.full((), operand, dtype=like.dtype, device=like.device)


_POINTWISE: dict[str, Callable[..., Tensor]] = {
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """Elements of `a` where the condition holds, else of `b`."""
    like = a if isinstance(a, torch.Tensor) else b
    return torch.where(condition, _as_tensor(a, like), _as_tensor(b, like))


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another dtype."""
    return x.to(dtype)


def reduction(name: str) -> Callable[[Tensor, tuple[int, ...]], Tensor]:
    """The reference of a reduction over several dims."""
    return _REDUCTIONS[name]


def _sum(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.sum(x, dims, dtype=x.dtype) if dims else x


def _prod(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


_REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "sum": _sum,
    "prod": _prod,
    "amax": lambda x, dims: torch.amax(x, dims) if dims else x,
    "amin": lambda x, dims: torch.amin(x, dims) if dims else x,
    "any": lambda x, dims: torch.any(x, dims) if dims else x,
    "all": lambda x, dims: torch.all(x, dims) if dims else x,
}


def argmax(x: Tensor, dim: int) -> Tensor:
    """First index of the greatest element."""
    return torch.argmax(x.to(torch.uint8) if x.dtype is torch.bool else x, dim)


def argmin(x: Tensor, dim: int) -> Tensor:
    """First index of the least element."""
    return torch.argmin(x.to(torch.uint8) if x.dtype is torch.bool else x, dim)


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Repeat dims of size 1."""
    return x.expand(tuple(shape))


def permute(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Reorder dims."""
    return x.permute(dims)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Regroup dims."""
    return x.reshape(tuple(shape))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """New dim of size 1."""
    return x.unsqueeze(dim)


def squeeze(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Drop dims of size 1."""
    return x.squeeze(dims)


def slice_(x: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    """A range of one dim."""
    return x[(builtins.slice(None),) * dim + (builtins.slice(start, stop, step),)]


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One index of one dim."""
    return x.select(dim, index)


def diagonal(x: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """A diagonal, as the last dim."""
    return x.diagonal(offset, dim1, dim2)


def as_strided(x: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A window on the memory of x."""
    return x.as_strided(tuple(shape), tuple(stride), offset)


def flip(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Reversed along dims."""
    return x.flip(dims)


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements at the index along one dim."""
    return torch.gather(x, dim, index)


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Elements at the indices of several dims."""
    return torch.ops.aten.index.Tensor(x, list(indices))


def pad(x: Tensor, lows: Sequence[int], highs: Sequence[int], value: Any) -> Tensor:
    """`value` around x."""
    shape = [low + size + high for low, size, high in zip(lows, x.shape, highs, strict=True)]
    padded = torch.full(shape, value, dtype=x.dtype, device=x.device)
    padded[
        tuple(builtins.slice(low, low + size) for low, size in zip(lows, x.shape, strict=True))
    ] = x
    return padded


def cat(xs: Sequence[Tensor], dim: int) -> Tensor:
    """Joined along one dim."""
    return torch.cat(list(xs), dim)


def full(shape: Sequence[int], value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One value everywhere."""
    return torch.full(tuple(shape), value, dtype=dtype, device=device)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Undefined elements."""
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def iota(length: int, start: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """start, start + step, ..."""
    return (torch.arange(length, dtype=torch.int64, device=device) * step + start).to(dtype)


def clone(x: Tensor) -> Tensor:
    """The same elements in new memory."""
    return x.clone()


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """The same elements on another device."""
    return x.to(device)
