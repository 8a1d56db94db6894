"""Compute 1 + erf(x) in few instructions (GELU).

    v9 = erf v8; v11 = add v9 v10 (1.0); ... store b2 (cast v12 :bf16)
->  t = abs v8; p = t * (c0 + t * (c1 + ...)); e = exp2 (neg p); v11 = where (lt v8 0) e (sub 2 e)

1 + erf(x) is erfc(-x), and log2(erfc(t)) of t >= 0 is close to a polynomial. The library's erf has
two ranges, branches, and takes twice as many instructions; after a matrix product these bound the
kernel. For x < -1 the result is nearer to the exact one than the sum in float32, where digits
cancel.

Kernels in C++ call a function of their prelude (`one_plus_erf`), whose error is at most 1.3e-7 (the
sum's: 9e-8), and as large as the sum's on average. Kernels for GPUs get the statements, where only
half-precision results depend on them: their powers of two are less exact than float32 is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.half_results import only_for_halves, without_unread
from flambeau_inductor.ir import Compute, Constant, defined_name, operands

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body, LoopKernel, Statement

COEFFICIENTS = (
    1.6279085874557495, 0.9184163808822632, 0.1484816074371338, -0.02825368009507656,
    0.0007746290066279471, 0.0014894419582560658, -0.0004455077287275344, 4.535860716714524e-05,
)  # fmt: skip
"""Of -log2(erfc(t)) / t, the constant term first: least maximal error of erfc over 0 <= t <= 4.5,
1.6e-8. The last one is positive, and beyond 4.5 the polynomial grows: erfc goes to 0.
"""


def shorten_erf(kernel: LoopKernel) -> LoopKernel:
    """The kernel with each such sum computed in the short way."""
    if not any(isinstance(each, Compute) and each.op == "erf" for each in kernel.body):
        return kernel
    narrowed = only_for_halves(kernel.body)
    arguments = {s.name: s.args[0] for s in kernel.body if isinstance(s, Compute) and s.op == "erf"}
    sums = {name: erf for name, erf in sums_of_erf(kernel.body).items() if name in narrowed}
    body: list[Statement] = []
    for statement in kernel.body:
        if isinstance(statement, Compute) and statement.name in sums:
            body += _one_plus_erf(statement.name, arguments[sums[statement.name]])
        else:
            body.append(statement)
    return replace(kernel, body=without_unread(body))


def sums_of_erf(body: Body) -> dict[str, str]:
    """The sums 1 + erf(x) whose erf nothing else reads, each with the name of the erf."""
    if not any(isinstance(each, Compute) and each.op == "erf" for each in body):
        return {}
    defined = {name: s for s in body if (name := defined_name(s)) is not None}
    reads = Counter(name for statement in body for name in set(operands(statement)))
    result: dict[str, str] = {}
    for statement in body:
        pair = _erf_and_one(statement, defined) if isinstance(statement, Compute) else None
        if pair is not None and reads[pair[0]] == 1:
            result[statement.name] = pair[0]  # type: ignore[union-attr]
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
