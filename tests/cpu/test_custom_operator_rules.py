"""The key of a stored graph holds the rules of custom operators: what they lead to changes it."""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flambeau.custom_operators import rules_digest

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS = itertools.count()


def operator(gradient: Callable[..., Any]) -> str:
    """The name of an operator with this gradient."""
    name = f"operator_rules::of_{next(_NUMBERS)}"

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    made = torch.library.custom_op(name, kernel, mutates_args=())
    made.register_fake(torch.empty_like)
    made.register_autograd(gradient)
    return name


def rule(text: str, **known: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A gradient that is defined in a module of its own, and the names of that module."""
    known["__name__"] = "module_of_rules"
    exec(f"def rule(ctx, grad):\n    return {text}\n", known)
    return known["rule"], known


def helper(**members: Any) -> types.ModuleType:
    module = types.ModuleType("module_of_helpers")
    vars(module).update(members)
    return module


def set_inner(known: dict[str, Any]) -> None:
    known["package"].inner.factor = 3.0


CHANGES: dict[str, tuple[str, dict[str, Any], Callable[[dict[str, Any]], None]]] = {
    "a global": ("grad * factor", {"factor": 2.0}, lambda known: known.update(factor=3.0)),
    "one of equal globals": (
        "grad * a + b * c", {"a": 2, "b": 3, "c": 2}, lambda known: known.update(c=3),
    ),
    "a member of a module within": (
        "grad * package.inner.factor", {"package": helper(inner=helper(factor=2.0))}, set_inner,
    ),
    "an attribute of the function": (
        "grad * rule.factor", {}, lambda known: setattr(known["rule"], "factor", 3.0),
    ),
    "a default": (
        "other(grad)", {"other": lambda grad, factor=2.0: grad * factor},
        lambda known: setattr(known["other"], "__defaults__", (3.0,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_rule_leads_to_changes_the_key(name: str) -> None:
    text, known, change = CHANGES[name]
    gradient, found = rule(text, **known)
    found["rule"].factor = 2.0
    made = operator(gradient)
    before = rules_digest(made)
    assert before is not None and before == rules_digest(made)
    change(found)
    assert rules_digest(made) not in (None, before)


@pytest.mark.parametrize(
    "text",
    [
        "grad * globals()['factor']", "grad * getattr(package, 'factor')", "grad * eval('factor')",
        "grad * float(os.environ['FACTOR'])", "grad * len(sys.modules)",
        "grad * __import__('math').pi", "grad * held['factor']",
    ],
)  # fmt: skip
def test_a_rule_that_reads_what_names_do_not_tell_has_no_key(text: str) -> None:
    import os
    import sys

    gradient, _ = rule(text, factor=2.0, package=helper(factor=2.0), os=os, sys=sys, held={})
    assert rules_digest(operator(gradient)) is None


def test_a_cell_may_be_empty() -> None:
    def outer() -> tuple[Callable[..., Any], Callable[[], None]]:
        def gradient(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * 2 if grad.numel() else later

        def assign() -> None:
            nonlocal later
            later = 3.0

        if False:
            later = 1.0
        return gradient, assign

    gradient, assign = outer()
    made = operator(gradient)
    before = rules_digest(made)
    assign()
    assert before is not None and rules_digest(made) != before
