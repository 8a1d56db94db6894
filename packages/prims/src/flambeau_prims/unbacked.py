"""Operators whose results have data-dependent sizes: each call makes unbacked symbols for
them.

    x[x > 0]  ->  f32[u0], 0 <= u0 <= x.numel()

A rule here takes the SizeEnv first, then what a shape rule takes, and is asked where a tracer may
make unbacked symbols; elsewhere the operator's shape rule raises `DataDependent`. NotImplemented:
these arguments leave nothing to the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.index import index
from flambeau_prims.size_floats import Condition, unbacked_float
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import broadcast_shapes, product, wrap_dim
from flambeau_prims.unsupported import DataDependent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.sizes import ExprEnv
    from flambeau_prims.spec import Size

aten = torch.ops.aten

UNBACKED_RULES: dict[Any, Callable[..., Any]] = {}

_RANGES = {
    torch.bool: (0, 1),
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int32: (-(2**31), 2**31 - 1),
}


def new_number(env: ExprEnv, dtype: torch.dtype) -> Any:
    """The element of a tensor of this dtype, as a new Expr, FloatExpr or (of a bool) Condition."""
    if dtype.is_complex:
        raise DataDependent("a complex number of a tensor is asked for")
    if dtype.is_floating_point:
        return unbacked_float(env)
    lower, upper = _RANGES.get(dtype, (None, None))
    number = env.unbacked(lower=lower, upper=upper)
    return Condition("!=", number, 0) if dtype is torch.bool else number


def _rule(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        UNBACKED_RULES.update(dict.fromkeys(ops, function))
        return function

    return declare


def _count(env: ExprEnv, most: Size) -> Expr:
    """How many of `most` elements there are."""
    return env.unbacked(lower=0, upper=most)


def _vector(like: Spec, length: Size, dtype: torch.dtype | None = None) -> Spec:
    return like.fresh((length,), dtype=dtype)


@_rule(aten.nonzero.default)
def nonzero(env: ExprEnv, self: Spec) -> Spec:
    """A row for each, column by column in memory."""
    count = _count(env, self.numel)
    return self.fresh((count, self.ndim), (1, count), dtype=torch.int64)


@_rule(aten.masked_select.default)
def masked_select(env: ExprEnv, self: Spec, mask: Spec) -> Spec:
    """One dim."""
    return _vector(self, _count(env, product(broadcast_shapes(self.shape, mask.shape))))


@_rule(aten.index.Tensor)
def index_by_masks(env: ExprEnv, self: Spec, indices: Sequence[Spec | None]) -> Any:
    """A mask stands for the positions of its True elements: one index for each of its dims."""
    if not any(_is_mask(item) for item in indices):
        return NotImplemented
    expanded: list[Spec | None] = []
    for item in indices:
        if item is not None and _is_mask(item):
            dims = self.shape[len(expanded) : len(expanded) + item.ndim]
            if len(dims) < item.ndim:
                raise IndexError(f"too many indices for tensor of dimension {self.ndim}")
            for dim, (have, want) in enumerate(zip(item.shape, dims, strict=True)):
                if isinstance(have, int) and isinstance(want, int) and have != want:
                    raise IndexError(
                        f"The shape of the mask {list(item.shape)} at index {dim} does not "
                        f"match the shape of the indexed tensor "
                        f"{list(self.shape)} at index {len(expanded) + dim}"
                    )
            expanded += [_vector(item, _count(env, item.numel), torch.int64)] * item.ndim
        else:
            expanded.append(item)
    return index(self, expanded)


def _is_mask(item: Spec | None) -> bool:
    return item is not None and item.dtype in (torch.bool, torch.uint8)


@_rule(aten.bincount.default)
def bincount(env: ExprEnv, self: Spec, weights: Spec | None = None, minlength: Size = 0) -> Spec:
    """As long as the greatest element asks, and at least `minlength`."""
    if weights is None:
        dtype = torch.int64
    else:
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    count = env.unbacked(lower=minlength if isinstance(minlength, int) else 0)
    return _vector(self, count, dtype)


@_rule(aten.repeat_interleave.Tensor)
def repeat_interleave(env: ExprEnv, repeats: Spec, *, output_size: Size | None = None) -> Spec:
    """An index for each repetition."""
    return _vector(repeats, env.unbacked(lower=0) if output_size is None else output_size)


@_rule(aten._ctc_loss.Tensor)
def ctc_loss(
    env: ExprEnv, log_probs: Spec, targets: Spec, *_lengths: Any, **_options: Any
) -> tuple[Spec, Spec]:
    """The loss of each sequence, and the alphas (sequence, time, 2 * longest target + 1)."""
    if log_probs.ndim != 3:
        raise RuntimeError(
            f"Expected 3-dimensional tensor, but got {log_probs.ndim}-dimensional tensor for "
            "argument #1 'log_probs' (while checking arguments for ctc_loss_allocate_outputs)"
        )
    time, batch, _ = log_probs.shape
    states = _count(env, targets.numel) * 2 + 1
    losses = log_probs.fresh((batch,))
    return losses, losses.replace(shape=(batch, time, states))


def _distinct(
    env: ExprEnv, self: Spec, return_inverse: bool, return_counts: bool, *, results: int
) -> tuple[Spec, ...]:
    count = _count(env, self.numel)
    inverse = self.fresh(self.shape if return_inverse else (0,), dtype=torch.int64)
    return (
        _vector(self, count),
        inverse,
        _vector(self, count if return_counts else 0, torch.int64),
    )[:results]


@_rule(aten._unique2.default)
def unique2(
    env: ExprEnv,
    self: Spec,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Spec, ...]:
    """The distinct elements, the index of each element among them, and how often they occur."""
    return _distinct(env, self, return_inverse, return_counts, results=3)


@_rule(aten._unique.default)
def unique(
    env: ExprEnv, self: Spec, sorted: bool = True, return_inverse: bool = False
) -> tuple[Spec, ...]:
    """As `_unique2`, without counts."""
    return _distinct(env, self, return_inverse, False, results=2)


@_rule(aten.unique_consecutive.default)
def unique_consecutive(
    env: ExprEnv,
    self: Spec,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Spec, ...]:
    """As `_unique2`, of neighbours only."""
    if dim is not None:
        return _distinct_along(env, self, dim, return_inverse, return_counts)
    return _distinct(env, self, return_inverse, return_counts, results=3)


@_rule(aten.unique_dim.default)
def unique_dim(
    env: ExprEnv,
    self: Spec,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Spec, ...]:
    """The distinct slices along a dim."""
    return _distinct_along(env, self, dim, return_inverse, return_counts)


@_rule(aten.unique_dim_consecutive.default)
def unique_dim_consecutive(
    env: ExprEnv, self: Spec, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Spec, ...]:
    """As `unique_dim`, of neighbours only."""
    return _distinct_along(env, self, dim, return_inverse, return_counts)


def _distinct_along(
    env: ExprEnv, self: Spec, dim: int, return_inverse: bool, return_counts: bool
) -> tuple[Spec, ...]:
    axis = wrap_dim(dim, self.ndim)
    length = self.shape[axis]
    count = _count(env, length)
    moved = (count, *self.shape[1:axis], *self.shape[:1], *self.shape[axis + 1 :])
    moved = moved if axis else (count, *self.shape[1:])
    stride = list(contiguous_stride(moved))
    stride[0], stride[axis] = stride[axis], stride[0]
    shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
    return (
        self.fresh(shape, stride),
        _vector(self, length if return_inverse else 0, torch.int64),
        _vector(self, count if return_counts else 0, torch.int64),
    )
