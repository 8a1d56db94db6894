"""What every primitive computes, in plain eager PyTorch: the reference that compiled code is tested
against.

Results may come in any strides; `evaluate.run_graph` lays fresh results out as their Value's Spec
says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.philox import random_member, random_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def reference(name: str) -> Callable[..., Tensor]:
    """The primitive of this name on real tensors."""
    return _OTHERS.get(name) or _pointwise(_POINTWISE.get(name) or getattr(torch, name))


def _pointwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of tensors, also of numbers: these become 0-dim tensors of the operands' dtype."""

    def pointwise(*operands: Any) -> Tensor:
        like = next(operand for operand in operands if isinstance(operand, torch.Tensor))
        return function(*(_as_tensor(operand, like) for operand in operands))

    return pointwise


def _as_tensor(operand: Any, like: Tensor) -> Tensor:
    if isinstance(operand, torch.Tensor):
        return operand
    if isinstance(operand, float) and like.dtype.is_floating_point:
        # A number too great for the dtype is infinite; torch.full would refuse it.
        return torch.full((), operand, dtype=torch.float64, device=like.device).to(like.dtype)
    return torch.full((), operand, dtype=like.dtype, device=like.device)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c: of float32 in float64, where products are exact; of float64 with the product and
    the sum in two parts (Dekker, Knuth).
    """
    if a.dtype is torch.float32:
        return (a.double() * b.double() + c.double()).float()
    product = a * b
    total = product + c
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    moved = total - product
    lost = (product - (total - moved)) + (c - moved)
    exact = total + (rest + lost)
    return torch.where(exact.isfinite() & (exact != total), exact, total)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """A float64 as a sum of two numbers of 26 bits."""
    shifted = x * 134217729.0
    high = shifted - (shifted - x)
    return high, x - high


_POINTWISE: dict[str, Callable[..., Tensor]] = {
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "fma": _fma,
    "fast_log": torch.log,
    "fast_sin": torch.sin,
    "fast_cos": torch.cos,
}


def _where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """Elements of `a` where the condition holds, else of `b`."""
    like = a if isinstance(a, torch.Tensor) else b
    return torch.where(condition, _as_tensor(a, like), _as_tensor(b, like))


def _sum(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.sum(x, dims, dtype=x.dtype) if dims else x


def _prod(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


def _sum_exp(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    shifted = x - torch.amax(x, dims, keepdim=True) if dims else x - x
    return _sum(torch.exp(shifted), dims)


def _mean(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    if not dims:
        return x
    near = torch.mean(x, dims, keepdim=True)
    rest = torch.mean(x - near, dims, keepdim=True)
    return (near + rest).squeeze(dims)


def _squared_deviations(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    deviations = x - torch.mean(x, dims, keepdim=True) if dims else x - x
    return _sum(deviations * deviations, dims)


def _index_of(function: Callable[..., Tensor]) -> Callable[[Tensor, int], Tensor]:
    """argmax or argmin, of bools too: the first index of equals."""
    return lambda x, dim: function(x.to(torch.uint8) if x.dtype is torch.bool else x, dim)


def _scan(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A scan of torch, from the last element on if `reverse` is set."""

    def scan(x: Tensor, dim: int, reverse: bool) -> Tensor:
        return function(x.flip(dim), dim).flip(dim) if reverse else function(x, dim)

    return scan


def _sorted(x: Tensor, dim: int, descending: bool, count: int) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values.narrow(dim, 0, count), indices.narrow(dim, 0, count)


def _pad(x: Tensor, lows: Sequence[int], highs: Sequence[int], value: Any) -> Tensor:
    pairs = list(zip(lows, highs, strict=True))
    return torch.constant_pad_nd(x, [size for pair in pairs[::-1] for size in pair], value)


def _index_reduce(x: Tensor, indices: Any, source: Tensor, mode: str) -> Tensor:
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    at = tuple(slice(None) if index is None else index for index in indices)
    reduce = {"mul": "prod", "max": "amax", "min": "amin"}[mode]
    flat = x.reshape(-1).scatter_reduce(0, places[at].reshape(-1), source.reshape(-1), reduce)
    return flat.reshape(x.shape)


def _iota(length: int, start: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return (torch.arange(length, dtype=torch.int64, device=device) * step + start).to(dtype)


_OTHERS: dict[str, Callable[..., Tensor]] = {
    "where": _where,
    "cast": lambda x, dtype: x.to(dtype),
    "sum": _sum,
    "prod": _prod,
    "amax": lambda x, dims: torch.amax(x, dims) if dims else x,
    "amin": lambda x, dims: torch.amin(x, dims) if dims else x,
    "any": lambda x, dims: torch.any(x, dims) if dims else x,
    "all": lambda x, dims: torch.all(x, dims) if dims else x,
    "sum_exp": _sum_exp,
    "squared_deviations": _squared_deviations,
    "mean": _mean,
    "argmax": _index_of(torch.argmax),
    "argmin": _index_of(torch.argmin),
    "cumsum": _scan(lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype)),
    "cumprod": _scan(lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype)),
    "cummax": _scan(lambda x, dim: torch.cummax(x, dim).values),
    "cummin": _scan(lambda x, dim: torch.cummin(x, dim).values),
    "logcumsumexp": _scan(torch.logcumsumexp),
    "sort": lambda *args: _sorted(*args)[0],
    "argsort": lambda *args: _sorted(*args)[1],
    "expand": lambda x, shape: x.expand(tuple(shape)),
    "permute": lambda x, dims: x.permute(dims),
    "reshape": lambda x, shape: x.reshape(tuple(shape)),
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
    "squeeze": lambda x, dims: x.squeeze(dims),
    "slice": lambda x, dim, *bounds: x[(slice(None),) * dim + (slice(*bounds),)],
    "select": lambda x, dim, index: x.select(dim, index),
    "diagonal": lambda x, offset, dim1, dim2: x.diagonal(offset, dim1, dim2),
    "as_strided": lambda x, shape, stride, offset: x.as_strided(
        tuple(shape), tuple(stride), offset
    ),
    "flip": lambda x, dims: x.flip(dims),
    "gather": torch.gather,
    "index": lambda x, indices: torch.ops.aten.index.Tensor(x, list(indices)),
    "index_put": lambda x, indices, source, accumulate: torch.ops.aten.index_put(
        x, list(indices), source, accumulate
    ),
    "index_reduce": _index_reduce,
    "searchsorted": lambda boundaries, x, right: torch.searchsorted(
        boundaries.contiguous(), x.contiguous(), right=right
    ),
    "pad": _pad,
    "cat": lambda xs, dim: torch.cat(list(xs), dim),
    "full": lambda shape, value, dtype, device: torch.full(
        tuple(shape), value, dtype=dtype, device=device
    ),
    "empty": lambda shape, dtype, device: torch.empty(tuple(shape), dtype=dtype, device=device),
    "iota": _iota,
    "random_words": random_words,
    "random_member": random_member,
    "clone": lambda x: x.clone(),
    "to_device": lambda x, device: x.to(device),
}
"""Primitives that are not elementwise functions of torch."""
