"""Sum numbers that share bytes byte by byte.

inner r0 < 128: v0 = load b1[r0 // 2]; v1 = (digit r0 % 2 of v0); v2 = mul v1 (load b0[r0]); sum v2
->  inner r0 < 64: v0 = load b1[r0]; sum (its first digit * b0[2*r0] + its second * b0[2*r0 + 1])
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.codegen.packed_operand import PERIODS, DigitCopy, period_of
from flambeau_inductor.indexing.ranges import RangedMath
from flambeau_inductor.ir import (
    Axis,
    CheckIndex,
    Compute,
    Constant,
    IndexValue,
    Load,
    Reduce,
    Store,
    defined_name,
    inner_names,
    is_inner,
)
from flambeau_inductor.lowering.body_builder import BodyBuilder

if TYPE_CHECKING:
    from flambeau_inductor.ir import LoopKernel


def unpack_sum(kernel: LoopKernel) -> LoopKernel:
    """A kernel that sums numbers which share bytes, with an inner axis that counts those bytes."""
    reduces = [each for each in kernel.body if isinstance(each, Reduce)]
    if len(reduces) != 1 or reduces[0].kind != "sum" or len(kernel.inner) != 1:
        return kernel
    (axis,), inner = kernel.inner, inner_names(kernel.body, kernel.inner)
    stored = {each.value for each in kernel.body if isinstance(each, (Store, CheckIndex))}
    computed = (Constant, IndexValue, Load, Compute)
    if not isinstance(axis.size, int) or not stored.isdisjoint(inner):
        return kernel
    if any(is_inner(each, inner) and not isinstance(each, computed) for each in kernel.body):
        return kernel  # a scan
    period = period_of(kernel.body, axis, 16 * PERIODS[-1])
    if period == 1:
        return kernel
    builder = BodyBuilder()
    math = RangedMath({a.symbol.name: sympy.sympify(a.size) for a in kernel.outer}
                      | {axis.symbol.name: sympy.Integer(axis.size // period)})  # fmt: skip
    own = {name for each in kernel.body if (name := defined_name(each)) is not None}
    copies = [
        DigitCopy(builder, {axis.symbol: axis.symbol * period + digit}, math, own)
        for digit in range(period)
    ]
    first = copies[0]
    for statement in kernel.body:
        match statement:
            case Reduce(name, dtype, kind, value):
                total = first.names[value]
                for copy in copies[1:]:
                    total = builder.compute("add", (total, copy.names[value]), dtype)
                total = builder.reduce(kind, total, dtype)
                for copy in copies:
                    copy.names[name] = total
            case Store(buffer, index, value, mode, mask):
                condition = None if mask is None else first.names[mask]
                builder.store(buffer, first.index(index), first.names[value], mode, condition)
            case CheckIndex(value, size, mask):
                condition = None if mask is None else first.names[mask]
                builder.check_index(first.names[value], size, condition)
            case _:
                for copy in copies:
                    copy.names[statement.name] = copy.step(statement)
    smaller = Axis(axis.symbol, axis.size // period)
    return replace(kernel, inner=(smaller,), body=builder.finish())
