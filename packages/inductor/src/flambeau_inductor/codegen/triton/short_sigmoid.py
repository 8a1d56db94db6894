"""Compute 1 / (1 + exp(z)) and 1 + tanh(u) without a division where only half-precision results
depend on them: SiLU, sigmoid, GELU by tanh.

    v3 = exp v2; v4 = add v3 1; v5 = div v0 v4
->  e = exp2 (-log2(e) * abs v2); s = 1 + e * (c1 + e * (...)); v5 = mul v0 (where (lt 0 v2) e*s s)

With e = exp(-|z|), the fraction is 1 / (1 + e) or e / (1 + e), and 1 / (1 + e) over 0 <= e <= 1 is
close to a polynomial. 1 + tanh(u) is 2 / (1 + exp(-2 u)). An exact division and the library's tanh
branch, and take more instructions. The relative error is below 1e-6: rounding to float16 hides it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.half_results import only_for_halves, without_unread
from flambeau_inductor.ir import Compute, Constant, defined_name

if TYPE_CHECKING:
    from flambeau_inductor.ir import LoopKernel, Statement

COEFFICIENTS = (
    1.0, -0.9999707937240601, 0.9990239143371582, -0.9885342121124268, 0.9323356747627258,
    -0.7657738924026489, 0.4781147241592407, -0.1899491399526596, 0.03475383669137955,
)  # fmt: skip
"""Of 1 / (1 + e), the constant term first: least maximal relative error over 0 <= e <= 1, and 1 at
0.
"""

F32 = torch.float32


def shorten_sigmoid(kernel: LoopKernel) -> LoopKernel:
    """The kernel with each of these values computed in the short way."""
    if not any(isinstance(each, Compute) and each.op in ("exp", "tanh") for each in kernel.body):
        return kernel
    defined = {name: s for s in kernel.body if (name := defined_name(s)) is not None}
    halves = only_for_halves(kernel.body)
    body: list[Statement] = []
    changed = False
    for statement in kernel.body:
        short = None
        if isinstance(statement, Compute) and statement.dtype is F32 and statement.name in halves:
            short = _shortened(statement, defined)
        changed |= short is not None
        body += [statement] if short is None else short
    return replace(kernel, body=without_unread(body)) if changed else kernel


def _shortened(statement: Compute, defined: dict[str, Statement]) -> list[Statement] | None:
    """Statements that define the same value, or None."""
    writer = _Writer(statement.name)
    if statement.op in ("div", "reciprocal"):
        z = _plus_one(defined[statement.args[-1]], "exp", defined)
        if z is None:
            return None
        factor = statement.args[0] if statement.op == "div" else writer.constant(1.0)
        writer.finish(factor, writer.fraction(z, -1.0))
        return writer.statements
    u = _plus_one(statement, "tanh", defined)
    if u is None:
        return None
    writer.finish(writer.constant(2.0), writer.fraction(u, 2.0))
    return writer.statements


def _plus_one(statement: Statement, op: str, defined: dict[str, Statement]) -> str | None:
    """The operand of the operator `op` in a sum of it and 1, in float32."""
    if not isinstance(statement, Compute) or statement.op != "add" or statement.dtype is not F32:
        return None
    for first, second in (statement.args, statement.args[::-1]):
        value, one = defined[first], defined[second]
        if isinstance(value, Compute) and value.op == op and isinstance(one, Constant):
            return value.args[0] if one.value == 1 else None
    return None


class _Writer:
    """Statements that define a value of a given name, and others with names derived from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.statements: list[Statement] = []

    def constant(self, value: float) -> str:
        """A number."""
        name = f"{self.name}_{len(self.statements)}"
        self.statements.append(Constant(name, F32, value))
        return name

    def compute(self, op: str, *args: str, dtype: torch.dtype = F32) -> str:
        """The value of an operator."""
        name = f"{self.name}_{len(self.statements)}"
        self.statements.append(Compute(name, dtype, op, args))
        return name

    def fraction(self, x: str, scale: float) -> str:
        """1 / (1 + exp(-scale * x))."""
        rate = self.constant(-abs(scale) * math.log2(math.e))
        e = self.compute("exp2", self.compute("mul", self.compute("abs", x), rate))
        *rest, last = (self.constant(each) for each in COEFFICIENTS)
        for each in reversed(rest):
            last = self.compute("fma", last, e, each)
        zero = self.constant(0.0)
        signs = (x, zero) if scale > 0 else (zero, x)
        is_small = self.compute("lt", *signs, dtype=torch.bool)
        return self.compute("where", is_small, self.compute("mul", e, last), last)

    def finish(self, first: str, second: str) -> None:
        """Define the value: a product."""
        self.statements.append(Compute(self.name, F32, "mul", (first, second)))
