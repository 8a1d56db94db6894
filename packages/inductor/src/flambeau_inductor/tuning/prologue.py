"""Compute a factor of a matrix product inside the product's kernel.

nest cast (j0 < 64, j1 < 768): store buf0[768*j0 + j1] (cast (load w[768*j0 + j1]) :bf16)
nest mm (i0 < 512, i1 < 768 | r0 < 64): ... load buf0[768*r0 + i1] ...
->  one group over i0, i1 | r0, in which the first nest has j0 = r0, j1 = i1

Scales of groups of 32 rows, and two numbers in a byte, make the producer's axes digits of the
product's: j0 = r0 // 32, j1 = r0 % 32 // 2, j2 = r0 % 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.expressions import FloorDiv, Mod, linear_parts, sympify
from flambeau_inductor.scheduler.groups import Group, map_accesses, map_members, math_for

if TYPE_CHECKING:
    from flambeau_inductor.ir import Axis
    from flambeau_inductor.scheduler.groups import Mapping


def with_prologue(product: Group, producer: Group, name: str) -> Group | None:
    """The product's group with the producer of its factor `name`; None if the producer's loops are
    not among the product's, or compute more than the factor. On a GPU the producer may gather rows.
    """
    if producer.inner or producer.is_extern or producer.stores.keys() != {name}:
        return None
    stored, loaded = producer.stores[name], product.loads[name]
    if len(stored) != 1 or len(loaded) != 1:
        return None
    if producer.device == "cpu" and any(node.relies_on_checks for node in producer.nodes):
        return None  # its products do not check indices
    mapping = _axes_of(next(iter(stored)), producer.outer, next(iter(loaded)),
                       (*product.outer, *product.inner))  # fmt: skip
    if mapping is None:
        return None
    math = math_for((*product.outer, *product.inner))
    loads = {key: indices for key, indices in product.loads.items() if key != name}
    for key, indices in map_accesses(producer.loads, mapping, math).items():
        loads[key] = loads.get(key, frozenset()) | indices
    return Group(
        map_members(producer.members, mapping, math) + product.members,
        product.outer, product.inner, loads,
        map_accesses(producer.stores, mapping, math) | product.stores,
    )  # fmt: skip


def _axes_of(
    stored: sympy.Expr, own: tuple[Axis, ...], loaded: sympy.Expr, others: tuple[Axis, ...]
) -> Mapping | None:
    """What each axis is in the `others`, if both index expressions walk alike: one of them, or the
    digits of one (of an axis of 64 * 2 points, `r // 2` and `r % 2`).
    """
    writes = linear_parts(stored, frozenset(axis.symbol.name for axis in own))
    reads = linear_parts(loaded, frozenset(axis.symbol.name for axis in others))
    if writes is None or reads is None or writes[1] != reads[1] or len(writes[0]) != len(own):
        return None
    strides = {axis: writes[0][axis.symbol.name] for axis in own}
    mapping: Mapping = {}
    for other in others:
        stride = reads[0].get(other.symbol.name)
        if stride is None:
            continue
        chain = _chain(strides, stride, other)
        if chain is None:
            return None
        below = sympy.Integer(1)
        for axis in chain:
            del strides[axis]
            digit = FloorDiv(other.symbol, below)
            size = sympify(axis.size)
            mapping[axis.symbol] = digit if axis is chain[-1] else Mod(digit, size)
            below *= size
    return None if strides else mapping


def _chain(strides: dict[Axis, sympy.Expr], stride: sympy.Expr, whole: Axis) -> list[Axis] | None:
    """The axes, innermost first, that together walk as `whole` does with a stride."""
    chain: list[Axis] = []
    points = sympy.Integer(1)
    while points != whole.size:
        # Sizes that are known only in part would need an equation of products.
        if chain and not (points.is_Integer and isinstance(whole.size, int)):
            return None
        same = [axis for axis in strides if strides[axis] == stride and axis not in chain]
        if len(same) != 1 or len(chain) > len(strides):
            return None
        chain += same
        size = sympify(same[0].size)
        points, stride = points * size, sympy.expand(stride * size)
    return chain
