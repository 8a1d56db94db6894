"""Shape rules of operators that make tensors from sizes: empty, zeros, arange, new_*, *_like."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import torch

from flambeau_prims.held_numbers import refuse_overflow
from flambeau_prims.promotion import Number, is_integral, number_dtype
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.registry import rule
from flambeau_prims.size_floats import as_float
from flambeau_prims.sizes import Expr, as_int, ceil_div, expect, lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import copy_stride, stride_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten

Dtype: TypeAlias = "torch.dtype | None"
Device: TypeAlias = "torch.device | None"
MemoryFormat: TypeAlias = "torch.memory_format | None"


def fresh(
    shape: Sizes, dtype: Dtype = None, device: Device = None, memory_format: MemoryFormat = None
) -> Spec:
    """A new tensor; a missing dtype is the default one, a missing device the CPU.

    (`torch.set_default_device` and `with torch.device(...)` name the device explicitly before ATen
    is called.)
    """
    for size in shape:
        if not expect(">=", size, 0):
            raise RuntimeError(
                f"Trying to create tensor with negative dimension {size}: {list(shape)}"
            )
    return Spec.of(
        shape,
        stride=stride_for(tuple(shape), memory_format),
        dtype=torch.get_default_dtype() if dtype is None else dtype,
        device="cpu" if device is None else device,
    )


@rule(aten.empty.memory_format, aten.ones.default, aten._efficientzerotensor.default)
def empty(
    size: Sizes, dtype: Dtype = None, device: Device = None, memory_format: MemoryFormat = None
) -> Spec:
    """Row-major unless a memory format is given."""
    return fresh(size, dtype, device, memory_format)


@rule(aten.zeros.default)
def zeros(size: Sizes, dtype: Dtype, device: Device) -> Spec:
    """Row-major."""
    if not all(expect(">=", each, 0) for each in size):
        raise RuntimeError("zeros: Dimension size must be non-negative.")
    return fresh(size, dtype, device)


@rule(aten.empty_strided.default)
def empty_strided(size: Sizes, stride: Sizes, dtype: Dtype, device: Device) -> Spec:
    """At the given strides."""
    result = fresh(size, dtype, device)
    if len(size) != len(stride):
        raise RuntimeError(
            f"dimensionality of sizes ({len(size)}) must match dimensionality of strides "
            f"({len(stride)})"
        )
    return result.replace(stride=tuple(stride))


@rule(aten.empty_permuted.default)
def empty_permuted(
    size: Sizes, physical_layout: Sequence[int], dtype: Dtype, device: Device
) -> Spec:
    """Dense, with dimensions in the order of `physical_layout`, the outermost first."""
    if sorted(physical_layout) != list(range(len(size))):
        raise RuntimeError(
            f"Number of dimensions in size {list(size)} does not match a permutation "
            f"{list(physical_layout)}"
        )
    result = fresh(size, dtype, device)
    inner = fresh([size[dim] for dim in physical_layout], dtype, device).stride
    stride: list[Size] = [0] * len(size)
    for position, dim in enumerate(physical_layout):
        stride[dim] = inner[position]
    return result.replace(stride=tuple(stride))


@rule(aten.full.default)
def full(size: Sizes, fill_value: Number, dtype: Dtype, device: Device) -> Spec:
    """The dtype is that of the value unless given."""
    return _of_number(
        fresh(size, number_dtype(fill_value) if dtype is None else dtype, device), fill_value
    )


def _of_number(result: Spec, number: Number) -> Spec:
    refuse_overflow(result, number)
    return result


@rule(aten.scalar_tensor.default)
def scalar_tensor(s: Number, dtype: Dtype, device: Device) -> Spec:
    """0-dim, floating unless a dtype is given."""
    return _of_number(fresh((), dtype, device), s)


@rule(aten.eye.default, aten.eye.m)
def eye(n: Size, dtype: Dtype, device: Device, m: Size | None = None) -> Spec:
    """n rows, m (or n) columns."""
    for name, size in (("n", n), ("m", m)):
        if size is not None and not expect(">=", size, 0):
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    return fresh((n, n if m is None else m), dtype, device)


# 1. Ranges


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(end: Number, dtype: Dtype, device: Device, start: Number = 0, step: Number = 1) -> Spec:
    """start, start + step, ... before end; integers if all three are and no dtype is given."""
    bounds = (start, end, step)
    if dtype is None:
        integral = all(is_integral(number_dtype(bound)) for bound in bounds)
        dtype = torch.int64 if integral else torch.get_default_dtype()
    if not isinstance(step, Expr) and step == 0:
        raise RuntimeError("step must be nonzero")
    if all(isinstance(bound, (int, Expr)) for bound in bounds):
        length = _integer_length(*bounds)  # type: ignore[arg-type]
    else:
        first, last, by = map(_concrete, bounds)
        length = _real_length(first, last, by, dtype)
    return fresh((length,), dtype, device)


def _concrete(number: Number) -> int | float:
    if isinstance(number, complex):
        raise RuntimeError("value cannot be converted to type double without overflow")
    return as_int(number) if isinstance(number, (int, Expr)) else as_float(number)


def _integer_length(start: Size, end: Size, step: Size) -> Size:
    span, magnitude = (start - end, -step) if lt(step, 0) else (end - start, step)
    if not expect(">=", span, 0):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    return ceil_div(span, magnitude)


def _real_length(start: float, end: float, step: float, dtype: torch.dtype) -> int:
    if dtype == torch.int64:
        start, end, step = int(start), int(end), int(step)
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    return math.ceil((end - start) / step)


@rule(aten.linspace.default, aten.logspace.default)
def linspace(steps: Size, dtype: Dtype, device: Device) -> Spec:
    """`steps` numbers from start to end, or powers of a base."""
    if lt(steps, 0):
        raise RuntimeError("number of steps must be non-negative")
    return fresh((steps,), dtype, device)


@rule(aten.tril_indices.default)
def tril_indices(row: int, col: int, offset: int, device: Device, dtype: Dtype = None) -> Spec:
    """Row and column of each element on and below a diagonal; sizes are static."""
    count = sum(min(max(r + offset + 1, 0), col) for r in range(row))
    return fresh((2, count), dtype or torch.int64, device)


@rule(aten.triu_indices.default)
def triu_indices(row: int, col: int, offset: int, device: Device, dtype: Dtype = None) -> Spec:
    """Row and column of each element on and above a diagonal; sizes are static."""
    count = sum(min(max(col - r - offset, 0), col) for r in range(row))
    return fresh((2, count), dtype or torch.int64, device)


# 2. Like another tensor


@rule(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default)
def new_empty(self: Spec, size: Sizes, dtype: Dtype, device: Device) -> Spec:
    """Row-major, with self's dtype and device."""
    return fresh(size, dtype or self.dtype, device or self.device)


@rule(aten.new_full.default)
def new_full(self: Spec, size: Sizes, fill_value: Number, dtype: Dtype, device: Device) -> Spec:
    """As new_empty, of a number that the dtype must hold."""
    return _of_number(new_empty(self, size, dtype, device), fill_value)


@rule(aten.new_empty_strided.default)
def new_empty_strided(self: Spec, size: Sizes, stride: Sizes, dtype: Dtype, device: Device) -> Spec:
    """As new_empty, at the given strides."""
    return new_empty(self, size, dtype, device).replace(stride=tuple(stride))


@rule(
    *overloads("empty_like"), *overloads("zeros_like"), *overloads("ones_like"),
    *overloads("rand_like"), *overloads("randn_like"), *overloads("randint_like"),
)  # fmt: skip
def empty_like(self: Spec, dtype: Dtype, device: Device, memory_format: MemoryFormat) -> Spec:
    """Self's shape, and its layout unless a memory format is given."""
    stride = copy_stride(self, memory_format)
    return Spec.of(
        self.shape, stride=stride, dtype=dtype or self.dtype, device=device or self.device
    )


@rule(*overloads("full_like"))
def full_like(
    self: Spec, fill_value: Number, dtype: Dtype, device: Device, memory_format: MemoryFormat
) -> Spec:
    """As empty_like, of a number that the dtype must hold."""
    return _of_number(empty_like(self, dtype, device, memory_format), fill_value)


# 3. From another tensor's contents


@rule(aten.one_hot.default)
def one_hot(self: Spec, num_classes: Size) -> Spec:
    """A new last dimension of `num_classes`."""
    if self.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if isinstance(num_classes, int) and num_classes < 0:
        raise RuntimeError(
            "one_hot with num_classes=-1 depends on the tensor's contents; give num_classes"
        )
    return self.fresh((*self.shape, num_classes), dtype=torch.int64)
