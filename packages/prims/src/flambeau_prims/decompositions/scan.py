"""Scans: running sums, products and extremes along a dim.

float16 and bfloat16 are accumulated in float32, integers and bool in int64, as eager does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.builder import compute_dtype
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.strides import wrap_dim

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder

aten = torch.ops.aten


def _accumulating(b: Builder, x: Value, dim: int, *, primitive: str, **_dtype: Any) -> Value:
    """A running sum or product, in the compute dtype of the result."""
    x = b.cast(x, compute_dtype(b.result.dtype))
    if not x.spec.shape:
        return x
    return getattr(b, primitive)(x, wrap_dim(dim, x.spec.ndim), False)


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    decomposition(getattr(aten, _name).default)(partial(_accumulating, primitive=_name))


def _extreme(b: Builder, x: Value, dim: int, *, primitive: str) -> tuple[Value, Value]:
    """A running extreme, and where it stands: at the last element so far that equalled it, or that
    is NaN.
    """
    x = b.widen(x)
    shape, device = x.spec.shape, x.spec.device
    if not shape:
        return x, b.full((), 0, torch.int64, device)
    dim = wrap_dim(dim, len(shape))
    extreme = getattr(b, primitive)(x, dim, False)
    equal = b.eq(x, extreme)
    if x.spec.dtype.is_floating_point:
        equal = b.bitwise_or(equal, b.isnan(x))
    size = shape[dim]
    narrow = isinstance(size, int) and size < 2**31
    places = b.iota(size, 0, 1, torch.int32 if narrow else torch.int64, device)
    taken = b.where(equal, b.along(places, (dim,), shape), 0)
    return extreme, b.cast(b.cummax(taken, dim, False), torch.int64)


for _name in ("cummax", "cummin"):
    decomposition(getattr(aten, _name).default)(partial(_extreme, primitive=_name))


def reversed_scan(b: Builder, x: Value, dims: tuple[int, ...]) -> Value | None:
    """flip(x) as a scan from the last element on, if x is the scan of a flipped tensor."""
    return _flipped(b, x, dims) if _is_scan(x, dims) else None


def _is_scan(x: Value, dims: tuple[int, ...]) -> bool:
    node = x.producer
    if node is None or not isinstance(node.op, Prim):
        return False
    if node.op.name == "cast":
        return _is_scan(node.args[0], dims)
    return node.op.kind is Kind.SCAN and dims == (node.args[1],) and _is_flip(node.args[0], dims)


def _is_flip(x: Value, dims: tuple[int, ...]) -> bool:
    node = x.producer
    if node is None or not isinstance(node.op, Prim):
        return False
    if node.op.name == "cast":
        return _is_flip(node.args[0], dims)
    return node.op.name == "flip" and node.args[1] == dims


def _flipped(b: Builder, x: Value, dims: tuple[int, ...]) -> Value:
    """flip(x), of what `_is_scan` accepts."""
    node = x.producer
    assert node is not None
    if node.op.name == "flip":
        return node.args[0]
    operand = _flipped(b, node.args[0], dims)
    if node.op.name == "cast":
        return b.cast(operand, node.args[1])
    return b.emit(node.op, operand, dims[0], not node.args[2])
