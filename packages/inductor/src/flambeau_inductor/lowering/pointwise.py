"""Lower pointwise primitives: one scalar operator on the operands' elements at the same index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.lowering.elements import operand_dtype
from flambeau_inductor.lowering.realize import result_of
from flambeau_inductor.lowering.registry import element_rule
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_prims.graph import Node


_OTHERS = ("where", "cast", "float_of_bits", "philox")


@element_rule(*(name for name in SCALAR_OPS if name not in _OTHERS))
def lower_pointwise(elements: Elements, node: Node, index: Index) -> str:
    """op(elements of the operands)."""
    dtype = operand_dtype(node)
    args = [elements.operand(arg, index, dtype) for arg in node.args]
    return elements.builder.pointwise(node.op.name, *args)


@element_rule("where")
def lower_where(elements: Elements, node: Node, index: Index) -> str:
    """a if condition else b; numbers take the other branch's dtype, or the result's."""
    condition, a, b = node.args
    dtype = result_of(node).spec.dtype
    chosen = [elements.operand(arg, index, dtype) for arg in (a, b)]
    name = elements.operand(condition, index, torch.bool)
    return elements.builder.pointwise("where", name, *chosen)


@element_rule("cast")
def lower_cast(elements: Elements, node: Node, index: Index) -> str:
    """The operand's element, converted."""
    x, dtype = node.args
    assert isinstance(x, Value)
    return elements.builder.cast(elements.element(x, index), dtype)
