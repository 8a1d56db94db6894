"""How dtypes are written in C++: in memory, and as a value in a loop body."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.float8 import FLOAT8, float8_bits

if TYPE_CHECKING:
    from flambeau_inductor.ir import Number

# float16, bfloat16 and float8 are only moved, selected and cast (ir, law 6), so their values are
# their bits.
_STORAGE = {
    torch.float64: "double", torch.float32: "float", torch.float16: "uint16_t",
    torch.bfloat16: "uint16_t", torch.int64: "int64_t", torch.int32: "int32_t",
    torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bool: "uint8_t",
    **dict.fromkeys(FLOAT8, "uint8_t"),
}  # fmt: skip

HALVES = {
    torch.float16: "float16", torch.bfloat16: "bfloat16",
    **{dtype: one.name for dtype, one in FLOAT8.items()},
}  # fmt: skip
"""Storage types, by the names of the prelude's conversions."""

_INTEGER_LIMITS = {
    torch.int64: ("INT64_MIN", "INT64_MAX"),
    torch.int32: ("INT32_MIN", "INT32_MAX"),
    torch.int16: ("-32768", "32767"),
    torch.int8: ("-128", "127"),
    torch.uint8: ("0", "255"),
    torch.bool: ("0", "1"),
}


def storage_type(dtype: torch.dtype) -> str:
    """The type of an element in memory; ValueError for a dtype that kernels do not take."""
    if dtype not in _STORAGE:
        raise ValueError(
            f"C++ kernels do not take {dtype}; they take {', '.join(map(str, _STORAGE))}"
        )
    return _STORAGE[dtype]


def value_type(dtype: torch.dtype) -> str:
    """The type of a value in a loop body."""
    return "bool" if dtype == torch.bool else storage_type(dtype)


def limits(dtype: torch.dtype) -> tuple[str, str]:
    """The least and the greatest value of a dtype, as C++ expressions; infinities for floats."""
    if dtype == torch.float32:
        return "-__builtin_inff()", "__builtin_inff()"
    if dtype == torch.float64:
        return "-__builtin_inf()", "__builtin_inf()"
    return _INTEGER_LIMITS[dtype]


def literal(value: Number, dtype: torch.dtype) -> str:
    """A number as a C++ literal of this dtype; halves as their bits."""
    if dtype in (torch.float16, torch.bfloat16):
        bits = torch.tensor(float(value), dtype=dtype).view(torch.int16).to(torch.int64).item()
        return f"(uint16_t)0x{int(bits) & 0xFFFF:04x}"
    if dtype in FLOAT8:
        return f"(uint8_t)0x{float8_bits(float(value), dtype):02x}"
    if dtype.is_floating_point:
        return _float_literal(float(value), "f" if dtype == torch.float32 else "")
    if dtype == torch.bool:
        return "true" if value else "false"
    wrapped = torch.tensor(int(value)).to(dtype).item()
    if dtype == torch.int64:
        return "INT64_MIN" if wrapped == -(1 << 63) else f"INT64_C({wrapped})"
    return f"({storage_type(dtype)})({wrapped})"


def _float_literal(value: float, suffix: str) -> str:
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return f"{value!r}{suffix}"
