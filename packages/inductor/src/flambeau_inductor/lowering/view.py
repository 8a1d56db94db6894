"""Lower views of values that have no memory: index maps from the result's index to the operand's.

(Views of what has memory never come here: `Elements.element` loads through their strides.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.indexing.ranges import reshape_index
from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.lowering.registry import element_rule
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_prims.graph import Node


@element_rule("expand")
def lower_expand(elements: Elements, node: Node, index: Index) -> str:
    """New leading dims drop away; repeated dims are read at 0."""
    x, shape = node.args
    lead = len(shape) - x.spec.ndim
    wanted, have = elements.sizes.convert_all(shape[lead:]), elements.shape(x)
    point = tuple(
        sympy.S.Zero if size != target and hint_of(x.spec.shape[d]) == 1 else position
        for d, (size, target, position) in enumerate(zip(have, wanted, index[lead:], strict=True))
    )
    return elements.element(x, point)


@element_rule("permute")
def lower_permute(elements: Elements, node: Node, index: Index) -> str:
    """Dim i of the result is the operand's dims[i]."""
    x, dims = node.args
    point: list[sympy.Expr] = [sympy.S.Zero] * len(dims)
    for position, d in zip(index, dims, strict=True):
        point[d] = position
    return elements.element(x, tuple(point))


@element_rule("reshape")
def lower_reshape(elements: Elements, node: Node, index: Index) -> str:
    """Regroup the digits of the row-major index."""
    x = node.args[0]
    point = reshape_index(elements.shape(x), elements.shape(result_of(node)), index, elements.math)
    return elements.element(x, point)


@element_rule("unsqueeze")
def lower_unsqueeze(elements: Elements, node: Node, index: Index) -> str:
    """The new dim drops away."""
    x, dim = node.args
    return elements.element(x, (*index[:dim], *index[dim + 1 :]))


@element_rule("squeeze")
def lower_squeeze(elements: Elements, node: Node, index: Index) -> str:
    """Dropped dims are read at 0."""
    x, dims = node.args
    rest = iter(index)
    return elements.element(
        x, tuple(sympy.S.Zero if d in dims else next(rest) for d in range(x.spec.ndim))
    )


@element_rule("slice")
def lower_slice(elements: Elements, node: Node, index: Index) -> str:
    """start + step * index along one dim."""
    x, dim, start, _, step = node.args
    convert = elements.sizes.convert
    moved = sympy.expand(convert(start) + convert(step) * index[dim])
    return elements.element(x, (*index[:dim], moved, *index[dim + 1 :]))


@element_rule("select")
def lower_select(elements: Elements, node: Node, index: Index) -> str:
    """A fixed index along one dim."""
    x, dim, position = node.args
    return elements.element(x, (*index[:dim], elements.sizes.convert(position), *index[dim:]))


@element_rule("diagonal")
def lower_diagonal(elements: Elements, node: Node, index: Index) -> str:
    """Both dims are read at the last index, one of them moved by the offset."""
    x, offset, dim1, dim2 = node.args
    *rest, position = index
    moved = elements.sizes.convert(offset)
    positive = hint_of(offset) >= 0
    left = iter(rest)
    point = [sympy.S.Zero] * x.spec.ndim
    for d in range(x.spec.ndim):
        if d == dim1:
            point[d] = position if positive else position - moved
        elif d == dim2:
            point[d] = position + moved if positive else position
        else:
            point[d] = next(left)
    return elements.element(x, tuple(point))
