"""Lower factories: values made of no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from flambeau_inductor.lowering.registry import element_rule

if TYPE_CHECKING:
    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_prims.graph import Node


@element_rule("full")
def lower_full(elements: Elements, node: Node, index: Index) -> str:
    """The number."""
    return elements.number(node.args[1], node.args[2])


@element_rule("empty")
def lower_empty(elements: Elements, node: Node, index: Index) -> str:
    """Undefined, hence anything; zero keeps runs alike."""
    return elements.builder.constant(0, node.args[1])


@element_rule("iota")
def lower_iota(elements: Elements, node: Node, index: Index) -> str:
    """start + index * step."""
    _, start, step, dtype, _ = node.args
    convert = elements.sizes.convert
    return elements.builder.index_value(
        sympy.expand(convert(start) + convert(step) * index[0]), dtype
    )
