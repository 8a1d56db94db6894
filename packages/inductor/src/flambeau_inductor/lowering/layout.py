"""Lower copies that only change where elements lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.lowering.registry import element_rule

if TYPE_CHECKING:
    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_prims.graph import Node


@element_rule("clone")
def lower_clone(elements: Elements, node: Node, index: Index) -> str:
    """The operand's element."""
    return elements.element(node.args[0], index)
