"""Scans in C++: what each carries from element to element, and how it takes a value.

v1 = scan sum v0   ->   v1_carry += v0; const float v1 = (float)v1_carry;

Floats are carried in double, as eager does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.cpp_types import limits, value_type
from flambeau_inductor.ir import Compute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau_inductor.ir import Scan, Statement

STEPS = {
    "sum": "{s} += {v};",
    "prod": "{s} *= {v};",
    "max": "{s} = {v} >= {s} || {v} != {v} ? {v} : {s};",
    "min": "{s} = {v} <= {s} || {v} != {v} ? {v} : {s};",
    "logaddexp": "{s} = log_add_exp({s}, {v});",
}
"""How a carry takes a value. Of equal extremes the last stays, and NaN."""


def carry_type(scan: Scan) -> str:
    """The type of a Scan's carry."""
    if scan.kind in ("max", "min"):
        return value_type(scan.dtype)
    return "double" if scan.dtype.is_floating_point else "uint64_t"


def carry_start(scan: Scan) -> str:
    """What a carry begins with."""
    if scan.kind in ("sum", "prod"):
        return "0" if scan.kind == "sum" else "1"
    return limits(torch.float64 if scan.kind == "logaddexp" else scan.dtype)[scan.kind == "min"]


def is_vector_sum(scan: Scan, values: Mapping[str, Statement]) -> bool:
    """Whether a row's Scan adds four floats at a time (`scan_sum`): one addition in four waits for
    the one before. Doubles that are no floats are added in eager's order: a partial sum of four
    could overflow where eager's does not.
    """
    if scan.kind != "sum":
        return False
    match values.get(scan.value):
        case Compute(op="cast", args=(operand,)) if scan.dtype is torch.float64:
            source = values.get(operand)
            return getattr(source, "dtype", None) is torch.float32
    return scan.dtype is torch.float32


def take(scan: Scan, value: str, index: str) -> tuple[str, str]:
    """The statement that takes a value into the carry, and the Scan's result."""
    carry = f"{scan.name}_carry{index}"
    wide = f"(uint64_t){value}" if carry_type(scan) == "uint64_t" else value
    return STEPS[scan.kind].format(s=carry, v=wide), f"({value_type(scan.dtype)}){carry}"
