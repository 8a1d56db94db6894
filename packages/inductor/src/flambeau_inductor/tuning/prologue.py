"""Compute a factor of a matrix product inside the product's kernel.

nest cast (j0 < 64, j1 < 768): store buf0[768*j0 + j1] (cast (load w[768*j0 + j1]) :bf16)
nest mm (i0 < 512, i1 < 768 | r0 < 64): ... load buf0[768*r0 + i1] ...
->  one group over i0, i1 | r0, in which the first nest has j0 = r0, j1 = i1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import linear_parts
from flambeau_inductor.scheduler.groups import Group, map_accesses, map_members, math_for

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.ir import Axis
    from flambeau_inductor.scheduler.groups import Mapping


def with_prologue(product: Group, producer: Group, name: str) -> Group | None:
    """The product's group with the producer of its factor `name`; None if the producer's loops are
    not among the product's, or compute more than the factor.
    """
    if producer.inner or producer.is_extern or producer.stores.keys() != {name}:
        return None
    stored, loaded = producer.stores[name], product.loads[name]
    if len(stored) != 1 or len(loaded) != 1 or any(n.relies_on_checks for n in producer.nodes):
        return None
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
    """Which of the `others` each axis is, if both index expressions walk alike."""
    writes = linear_parts(stored, frozenset(axis.symbol.name for axis in own))
    reads = linear_parts(loaded, frozenset(axis.symbol.name for axis in others))
    if writes is None or reads is None or writes[1] != reads[1]:
        return None
    if len(writes[0]) != len(own) or len(reads[0]) != len(own):
        return None
    mapping: Mapping = {}
    for axis in own:
        same = [
            other
            for other in others
            if reads[0].get(other.symbol.name) == writes[0][axis.symbol.name]
            and other.size == axis.size
        ]
        if len(same) != 1:
            return None
        mapping[axis.symbol] = same[0].symbol
    return mapping
