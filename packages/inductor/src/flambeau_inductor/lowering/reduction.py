"""Lower reductions: the result's dims become outer axes, the reduced dims inner axes.

s: f32[8] = prims.sum(x: f32[8, 512], (1,))
nest sum (i0 < 8 | r0 < 512) { v0 = load x[512*i0 + r0]; v1 = reduce sum v0; store s[i0] v1 }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.split_reduction import PARTIAL_RESULTS, identity, reduced_dims

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy
    import torch

    from flambeau_inductor.lowering.body_builder import BodyBuilder
    from flambeau_inductor.lowering.elements import Elements
    from flambeau_prims.graph import Node

REDUCTIONS = {
    "sum": "sum", "prod": "prod", "amax": "max", "amin": "min", "any": "any", "all": "all",
    "argmax": "argmax", "argmin": "argmin", "sum_exp": "sum_exp",
    "squared_deviations": "squared_deviations", "mean": "mean",
}  # fmt: skip
"""Primitive -> Reduce kind."""


def lower_reduction(
    elements: Elements, node: Node, name: str, kept: tuple[sympy.Expr, ...],
    reduced: tuple[sympy.Expr, ...], inside: str | None = None, has_inner: bool = True,
) -> str:  # fmt: skip
    """The operand of `node` reduced by the primitive `name` (its own, or one of its partial
    results), given the index into the kept dims and into the reduced dims, each in the operand's
    order.

    Where the condition `inside` does not hold, there is no element to reduce. `has_inner` is false
    if all reduced dims have size 1: there is one element.
    """
    x = node.args[0]
    dims = reduced_dims(node)
    outer, inner = iter(kept), iter(reduced)
    index = tuple(next(inner) if d in dims else next(outer) for d in range(x.spec.ndim))
    builder = elements.builder
    if inside is None:
        value = elements.element(x, index)
    else:
        with elements.where(inside):
            value = elements.element(x, index)
        dtype = x.spec.dtype
        value = builder.pointwise(
            "where", inside, value, builder.constant(identity(name, dtype), dtype)
        )
    elements.labels[name] = None
    dtype = result_of(node).spec.dtype
    if has_inner:
        return builder.reduce(REDUCTIONS[name], value, dtype)
    if name.startswith("arg"):
        return builder.constant(0, dtype)
    if name in PARTIAL_RESULTS:
        zero = builder.pointwise("sub", value, value)  # NaN if the element is infinite
        return builder.pointwise("exp", zero) if name == "sum_exp" else zero
    return value


def combine_parts(
    builder: BodyBuilder,
    name: str,
    parts: Sequence[str],
    dtype: torch.dtype,
    length: str,
    total: str | None = None,
) -> str:
    """The result of the primitive `name` from the partial results of chunks of `length` elements:
    those of `PARTIAL_RESULTS`, in its order, else its own. `total`: the elements in all, if the
    chunks may differ in length.
    """
    if name == "sum_exp":
        tops, sums = parts
        shift = builder.pointwise("sub", tops, builder.reduce("max", tops, dtype))
        weight = builder.pointwise("exp", shift)
        # A chunk of -inf alone has the sum NaN, but adds nothing to a finite rest.
        nothing = builder.pointwise("eq", tops, builder.constant(float("-inf"), dtype))
        weighted = builder.pointwise("mul", sums, weight)
        return builder.reduce("sum", builder.pointwise("where", nothing, weight, weighted), dtype)
    if name == "squared_deviations":
        means, squares = parts
        # The squares around all elements' mean: those around the chunk's, and those of its shift.
        average = combine_parts(builder, "mean", (means,), dtype, length, total)
        shift = builder.pointwise("sub", means, average)
        moved = builder.pointwise("mul", builder.pointwise("mul", shift, shift), length)
        return builder.reduce("sum", builder.pointwise("add", squares, moved), dtype)
    if name == "mean" and total is not None:
        weighted = builder.pointwise("mul", parts[0], length)
        return builder.pointwise("div", builder.reduce("sum", weighted, dtype), total)
    return builder.reduce(REDUCTIONS[name], parts[0], dtype)
