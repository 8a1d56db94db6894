"""Compute 1 + erf(x) in few instructions where only half-precision results depend on it (GELU).

    v9 = erf v8; v11 = add v9 v10 (1.0); ... store b2 (cast v12 :bf16)
->  t = abs v8; p = t * (c0 + t * (c1 + ...)); e = exp2 (neg p); v11 = where (lt v8 0) e (sub 2 e)

1 + erf(x) is erfc(-x), and log2(erfc(t)) of t >= 0 is close to a polynomial. The library's erf has
two ranges, branches, and takes twice as many instructions; after a matrix product these bound the
kernel. The result differs by less than 3e-7 from the exact one: rounding to float16 hides that. For
x < -1 it is nearer to it than the sum in float32, where digits cancel.

Kernels for GPUs get the statements; those in C++ call a function of their prelude (`one_plus_erf`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.half_results import only_for_halves, without_unread
from flambeau_inductor.ir import Compute, Constant, defined_name, operands

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, LoopKernel, Statement

COEFFICIENTS = (
    1.6279208660125732, 0.9182307124137878, 0.14937369525432587, -0.030171971768140793,
    0.002863374538719654, 0.00030189636163413525, -0.00011128594633191824, 8.640247870062012e-06,
)  # fmt: skip
"""Of -log2(erfc(t)) / t, the constant term first: least maximal error of erfc over 0 <= t <= 4.5.
The last one is positive, and beyond 4.5 the polynomial grows: erfc goes to 0.
"""


def shorten_erf(kernel: LoopKernel) -> LoopKernel:
    """The kernel with each such sum computed in the short way."""
    if not any(isinstance(each, Compute) and each.op == "erf" for each in kernel.body):
        return kernel
    sums = short_sums(kernel.body)
    body: list[Statement] = []
    for statement in kernel.body:
        if isinstance(statement, Compute) and statement.name in sums:
            body += _one_plus_erf(statement.name, sums[statement.name])
        else:
            body.append(statement)
    return replace(kernel, body=without_unread(body))


def short_sums(body: Body) -> dict[str, str]:
    """The sums 1 + erf(x) that may be computed in the short way, each with its x."""
    if not any(isinstance(each, Compute) and each.op == "erf" for each in body):
        return {}
    defined = {name: s for s in body if (name := defined_name(s)) is not None}
    result = {}
    for name in _sums_of_erf(body, defined) & only_for_halves(body):
        erf, _ = _erf_and_one(defined[name], defined)  # type: ignore[arg-type,misc]
        (result[name],) = operands(defined[erf])
    return result


def _erf_and_one(statement: Compute, defined: dict[str, Statement]) -> tuple[str, str] | None:
    """The operands of a sum of an erf and 1, in float32."""
    if statement.op != "add" or statement.dtype is not torch.float32:
        return None
    for first, second in (statement.args, statement.args[::-1]):
        erf, one = defined[first], defined[second]
        if isinstance(erf, Compute) and erf.op == "erf" and isinstance(one, Constant):
            return (first, second) if one.value == 1 else None
    return None


def _sums_of_erf(body: Body, defined: dict[str, Statement]) -> set[str]:
    """The sums of 1 and an erf that nothing else reads."""
    readers: dict[str, list[Statement]] = {}
    for statement in body:
        for name in operands(statement):
            readers.setdefault(name, []).append(statement)
    result = set()
    for statement in body:
        pair = _erf_and_one(statement, defined) if isinstance(statement, Compute) else None
        if pair is not None and len(readers[pair[0]]) == 1:
            result.add(statement.name)  # type: ignore[union-attr]
    return result


def _one_plus_erf(name: str, x: str) -> list[Statement]:
    """Statements that define `name`."""
    f32 = torch.float32
    result: list[Statement] = []

    def constant(value: float) -> str:
        result.append(Constant(f"{name}_{len(result)}", f32, value))
        return result[-1].name  # type: ignore[union-attr]

    def compute(op: str, *args: str, dtype: torch.dtype = f32) -> str:
        result.append(Compute(f"{name}_{len(result)}", dtype, op, args))
        return result[-1].name  # type: ignore[union-attr]

    t = compute("abs", x)
    *rest, last = (constant(each) for each in COEFFICIENTS)
    for each in reversed(rest):
        last = compute("fma", last, t, each)
    tail = compute("exp2", compute("neg", compute("mul", last, t)))
    is_negative = compute("lt", x, constant(0.0), dtype=torch.bool)
    head = compute("sub", constant(2.0), tail)
    result.append(Compute(name, f32, "where", (is_negative, tail, head)))
    return result
