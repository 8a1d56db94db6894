"""Leave out what nobody reads of a product: the columns and rows that padding added.

nest mm (i0 < 64, i1 < 1008 | r0 < 96): store buf0[1008*i0 + i1]
reader  (i0 < 64, i1 < 1001):           load buf0[1008*i0 + i1]
->  nest mm (i0 < 64, i1 < 1001 | r0 < 96), if nobody else reads buf0
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import linear_parts
from flambeau_inductor.ir import Axis

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.scheduler.groups import Group


def cut_to_reads(product: Group, reader: Group, name: str) -> Group | None:
    """The product over the points that the reader loads of buffer `name`; None if that is not a
    smaller range of each axis.
    """
    writes, reads = _walk(product, product.stores[name]), _walk(reader, reader.loads[name])
    if writes is None or reads is None:
        return None
    strides = {stride: axis for axis, stride in writes}
    sizes = {stride: axis.size for axis, stride in reads}
    if strides.keys() != sizes.keys() or len(strides) != len(writes) or len(sizes) != len(reads):
        return None
    new = {strides[stride].symbol: size for stride, size in sizes.items()}
    for axis in product.outer:
        size = new.get(axis.symbol)
        if not isinstance(size, int) or not isinstance(axis.size, int) or size > axis.size:
            return None
    return replace(product, outer=tuple(Axis(a.symbol, new[a.symbol]) for a in product.outer))


def _walk(group: Group, indices: frozenset[sympy.Expr]) -> list[tuple[Axis, sympy.Expr]] | None:
    """Each outer axis with its stride in the one index expression."""
    if len(indices) != 1:
        return None
    parts = linear_parts(next(iter(indices)), frozenset(a.symbol.name for a in group.outer))
    if parts is None or parts[1] != 0 or len(parts[0]) != len(group.outer):
        return None
    return [(axis, parts[0][axis.symbol.name]) for axis in group.outer]
