"""Factories: tensors made of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.graph import Value
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder, Operand
    from flambeau_prims.spec import Size, Spec

aten = torch.ops.aten


def filled(b: Builder, value: Any) -> Value:
    """A number in the shape, dtype and place of the result."""
    spec = b.result
    if spec.dtype.is_complex:
        return NotImplemented
    return b.full(spec.shape, value, spec.dtype, spec.device)


@decomposition(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default,
    # Eager's has no memory at all: a kernel could not read it.
    aten._efficientzerotensor.default,
)  # fmt: skip
def zeros(b: Builder, *args: Any, **options: Any) -> Value:
    """0 everywhere."""
    return filled(b, 0)


@decomposition(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *args: Any, **options: Any) -> Value:
    """1 everywhere."""
    return filled(b, 1)


@decomposition(aten.full.default, aten.full_like.default, aten.fill.Scalar)
def full(b: Builder, size_or_like: Any, value: Any, **options: Any) -> Value:
    """One number everywhere."""
    return filled(b, value)


@decomposition(aten.new_full.default)
def new_full(b: Builder, like: Value, size: Any, value: Any, **options: Any) -> Value:
    """One number everywhere."""
    return filled(b, value)


@decomposition(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: Any, **options: Any) -> Value:
    """A number as a 0-dim tensor."""
    return filled(b, value)


@decomposition(aten.fill.Tensor)
def fill(b: Builder, x: Value, value: Value) -> Value:
    """A 0-dim tensor's element everywhere."""
    return b.expand(b.cast(b.to_device(value, x.spec.device), x.spec.dtype), x.spec.shape)


@decomposition(
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default, aten.empty_permuted.default,
)  # fmt: skip
def empty(b: Builder, *args: Any, **options: Any) -> Value:
    """Memory with undefined elements."""
    spec = b.result
    return NotImplemented if spec.dtype.is_complex else b.empty(spec.shape, spec.dtype, spec.device)


# Progressions


@decomposition(aten.arange.default)
def arange(b: Builder, end: Any, **options: Any) -> Value:
    """0, 1, ... below `end`."""
    return arange_from(b, 0)


@decomposition(aten.arange.start, aten.arange.start_step)
def arange_from(b: Builder, start: Any, end: Any = None, step: Any = 1, **options: Any) -> Value:
    """start + i * step: in integers where those are, else in float64, rounded once."""
    spec = b.result
    (length,) = spec.shape
    if not spec.dtype.is_floating_point:
        if isinstance(start, float) or isinstance(step, float) or spec.dtype is torch.bool:
            return NotImplemented
        return b.iota(length, start, step, spec.dtype, spec.device)
    if not isinstance(start, float) and not isinstance(step, float):
        return b.cast(b.iota(length, start, step, torch.int64, spec.device), spec.dtype)
    steps = b.cast(b.iota(length, 0, 1, torch.int64, spec.device), torch.float64)
    return b.cast(b.add(b.mul(steps, step), start), spec.dtype)


@decomposition(aten.linspace.default)
def linspace(b: Builder, start: Operand, end: Operand, steps: Size, **options: Any) -> Value:
    """Evenly spaced; counted from the nearer end, so that both ends are exact."""
    spec = b.result
    if not spec.dtype.is_floating_point:
        return NotImplemented
    if not all(isinstance(x, (int, float)) for x in (start, end, steps)):
        return _spaced(b, start, end, steps)
    if steps == 1:
        return filled(b, start)
    step = (end - start) / (steps - 1)
    place = b.iota(steps, 0, 1, torch.int64, spec.device)
    position = b.cast(place, torch.float64)
    from_start = b.add(b.mul(position, step), start)
    from_end = b.sub(end, b.mul(b.sub(float(steps - 1), position), step))
    return b.cast(b.where(b.lt(place, steps // 2), from_start, from_end), spec.dtype)


_BETWEEN = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@decomposition(*(getattr(aten.linspace, overload) for overload in _BETWEEN))
def linspace_tensors(
    b: Builder, start: Operand, end: Operand, steps: Size, **options: Any
) -> Value:
    """The same between 0-dim tensors."""
    return _spaced(b, start, end, steps)


@decomposition(aten.logspace.default, *(getattr(aten.logspace, o) for o in _BETWEEN))
def logspace(
    b: Builder, start: Operand, end: Operand, steps: Size, base: float = 10.0, **options: Any
) -> Value:
    """Powers of `base` whose exponents are evenly spaced."""
    return _spaced(b, start, end, steps, base)


def _spaced(
    b: Builder, start: Operand, end: Operand, steps: Size, base: float | None = None
) -> Value:
    """Evenly spaced from start to end, or powers of base; computed in float64, rounded once."""
    spec = b.result
    numbers = [x for x in (start, end) if not isinstance(x, Value)]
    if any(isinstance(x, Value) and x.spec.shape for x in (start, end)):
        return NotImplemented  # eager's error
    if any(isinstance(x, complex) for x in numbers) or not spec.dtype.is_floating_point:
        return NotImplemented
    start, end = (
        b.expand(b.cast(b.to_device(x, spec.device), torch.float64), spec.shape)
        if isinstance(x, Value)
        else _repeated(b, x, spec)
        for x in (start, end)
    )
    place = b.iota(steps, 0, 1, torch.int64, spec.device)
    position = b.cast(place, torch.float64)
    last = _repeated(b, steps - 1, spec)
    step = b.div(b.sub(end, start), b.maximum(last, 1.0))
    from_start = b.add(b.mul(position, step), start)
    from_end = b.sub(end, b.mul(b.sub(last, position), step))
    near_start = b.bitwise_or(b.lt(place, steps // 2), b.eq(place, 0))
    spaced = b.where(near_start, from_start, from_end)
    return b.cast(spaced if base is None else b.pow(base, spaced), spec.dtype)


def _repeated(b: Builder, number: Any, like: Spec) -> Value:
    """A number, which may be symbolic, as float64 elements."""
    if isinstance(number, Expr):
        whole = b.full(like.shape, number, torch.int64, like.device)
        return b.cast(whole, torch.float64)
    return b.full(like.shape, number, torch.float64, like.device)


@decomposition(aten.eye.default, aten.eye.m)
def eye(b: Builder, *args: Any, **options: Any) -> Value:
    """1 on the diagonal."""
    spec = b.result
    if spec.dtype.is_complex:
        return NotImplemented
    rows, columns = row_and_column(b, spec.shape, spec.device)
    return b.cast(b.eq(rows, columns), spec.dtype)


def row_and_column(
    b: Builder, shape: tuple[Size, ...], device: torch.device
) -> tuple[Value, Value]:
    """Each place's index in the last two dims, as int64 tensors of `shape`."""
    ndim = len(shape)
    rows = b.iota(shape[-2], 0, 1, torch.int64, device)
    columns = b.iota(shape[-1], 0, 1, torch.int64, device)
    return b.along(rows, (ndim - 2,), shape), b.along(columns, (ndim - 1,), shape)


def _triangle(b: Builder, x: Value, diagonal: Size, primitive: str) -> Value:
    rows, columns = row_and_column(b, x.spec.shape, x.spec.device)
    inside = getattr(b, primitive)(b.sub(columns, rows), diagonal)
    return b.where(inside, x, False if x.spec.dtype is torch.bool else 0)


@decomposition(aten.tril.default)
def tril(b: Builder, x: Value, diagonal: Size = 0) -> Value:
    """The lower triangle, 0 above."""
    return _triangle(b, x, diagonal, "le")


@decomposition(aten.triu.default)
def triu(b: Builder, x: Value, diagonal: Size = 0) -> Value:
    """The upper triangle, 0 below."""
    return _triangle(b, x, diagonal, "ge")
