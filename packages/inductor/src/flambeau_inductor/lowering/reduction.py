"""Lower reductions: the result's dims become outer axes, the reduced dims inner axes.

s: f32[8] = prims.sum(x: f32[8, 512], (1,))
nest sum (i0 < 8 | r0 < 512) { v0 = load x[512*i0 + r0]; v1 = reduce sum v0; store s[i0] v1 }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.lowering.split_reduction import identity

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.lowering.elements import Elements
    from flambeau_prims.graph import Node

REDUCTIONS = {
    "sum": "sum", "prod": "prod", "amax": "max", "amin": "min", "any": "any", "all": "all",
    "argmax": "argmax", "argmin": "argmin",
}  # fmt: skip
"""Primitive -> Reduce kind."""


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dims that a reduction removes, in the operand's order."""
    dims = node.args[1]
    return (dims,) if isinstance(dims, int) else tuple(sorted(dims))


def lower_reduction(
    elements: Elements, node: Node, kept: tuple[sympy.Expr, ...], reduced: tuple[sympy.Expr, ...],
    inside: str | None = None, has_inner: bool = True,
) -> str:  # fmt: skip
    """The reduced value, given the index into the kept dims and into the reduced dims, each in the
    operand's order.

    Where the condition `inside` does not hold, there is no element to reduce.
    Reducing dims of size 1 only (there are no inner axes: `has_inner` is false) gives the element,
    at position 0.
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
            "where", inside, value, builder.constant(identity(node.op.name, dtype), dtype)
        )
    elements.labels[node.op.name] = None
    if not has_inner:
        is_position = REDUCTIONS[node.op.name].startswith("arg")
        return builder.constant(0, result_of(node).spec.dtype) if is_position else value
    return builder.reduce(REDUCTIONS[node.op.name], value, result_of(node).spec.dtype)
