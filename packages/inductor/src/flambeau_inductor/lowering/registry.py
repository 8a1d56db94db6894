"""The table of lowering functions by primitive; families register here, `load_all` imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_prims.lazy_exports import import_all_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    import sympy

    from flambeau_prims.graph import Node

    ElementRule = Callable[[Any, Node, tuple[sympy.Expr, ...]], str]

ELEMENT_RULES: dict[str, ElementRule] = {}
"""Primitive name -> rule(elements, node, index): the value of the result's element at `index`.

`elements` is the `Elements` of the nest; its module reads this table, so its type is not named.
"""

FAMILIES = ("pointwise", "view", "index", "factory", "layout", "random")


def element_rule(*names: str) -> Callable[[ElementRule], ElementRule]:
    """Register a rule for primitives, each of which may have one only."""

    def register(rule: ElementRule) -> ElementRule:
        for name in names:
            if name in ELEMENT_RULES:
                raise ValueError(f"primitive {name} has two element rules")
            ELEMENT_RULES[name] = rule
        return rule

    return register


def load_all() -> dict[str, ElementRule]:
    """The table, every family's rules in it."""
    import_all_apart([f"flambeau_inductor.lowering.{family}" for family in FAMILIES])
    return ELEMENT_RULES
