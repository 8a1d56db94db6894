"""Type promotion: the dtype in which an operator computes, from its operands.

Operands fall in three classes — tensors with dimensions, 0-dim tensors, Python numbers — and a
lower class changes the result of a higher one only by its category (bool < integer < floating <
complex).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable

Number: TypeAlias = "bool | int | float | complex | Expr"
Operand: TypeAlias = "Spec | Number"

_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_REAL_OF = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}

promote_types = cache(torch.promote_types)


def number_dtype(number: Number) -> torch.dtype:
    """The dtype of a Python number: bool, int64, or the default floating or complex dtype."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, (int, Expr)):
        return torch.int64
    if isinstance(number, complex):
        return _COMPLEX_OF[torch.get_default_dtype()]
    return torch.get_default_dtype()


def result_type(operands: Iterable[Operand]) -> torch.dtype:
    """The dtype to which these operands promote."""
    with_dims = zero_dim = number = None
    for operand in operands:
        if isinstance(operand, Spec):
            if operand.shape:
                with_dims = _join(with_dims, operand.dtype)
            else:
                zero_dim = _join(zero_dim, operand.dtype)
        else:
            number = _join(number, number_dtype(operand))
    result = _combine(with_dims, _combine(zero_dim, number))
    assert result is not None
    return result


def float_result(dtype: torch.dtype) -> torch.dtype:
    """The dtype of float math on `dtype`: itself, or the default dtype for integers and bool."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def is_integral(dtype: torch.dtype, include_bool: bool = True) -> bool:
    """Whether a dtype is an integer type (bool counts if `include_bool`)."""
    if dtype == torch.bool:
        return include_bool
    return not dtype.is_floating_point and not dtype.is_complex


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part: float32 for complex64; other dtypes are returned as they are."""
    return _REAL_OF.get(dtype, dtype)


def complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype with parts of this dtype."""
    return dtype if dtype.is_complex else _COMPLEX_OF[dtype]


def category(dtype: torch.dtype) -> int:
    """bool 0, integer 1, floating 2, complex 3."""
    if dtype == torch.bool:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def can_cast(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether an in-place operator may write `source` into `target`: no lower category."""
    return category(source) <= category(target)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as ATen's error messages name it."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half",
    torch.bfloat16: "BFloat16", torch.int64: "Long", torch.int32: "Int", torch.int16: "Short",
    torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}  # fmt: skip


def _join(left: torch.dtype | None, right: torch.dtype) -> torch.dtype:
    return right if left is None or left == right else promote_types(left, right)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return _COMPLEX_OF[higher] if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return promote_types(higher, lower)
    return higher
