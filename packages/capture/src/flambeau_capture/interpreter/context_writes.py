"""What the frame has set of context variables (`contextvars`): nothing is really set before its exit."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.classes import Native
from flambeau_capture.origins import Constant
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallEffect, CallRecipe, FromOrigin

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.rebuild import Rebuilder
    from flambeau_capture.origins import Origin
    from flambeau_capture.record import Effect, Recipe

UNWRITTEN: Any = object()
"""Stands for the value that a variable had when the frame began."""


class ContextToken(Native):
    """What `ContextVar.set` has returned inside the frame; `before` is the written value that it replaced, or UNWRITTEN."""

    __slots__ = ("before", "is_used", "var")

    def __init__(self, var: ContextVar[Any], before: Any) -> None:
        self.var = var
        self.before = before
        self.is_used = False

    def seen_attribute(self, name: str) -> Any:
        """`var`; the old value is the context's, which the frame has not read."""
        if name == "var":
            return self.var
        raise GraphBreak("unknown-c-function", f"Token.{name}")

    def recipe(self, rebuild: Rebuilder) -> Recipe:
        """A token that outlives the frame is made by setting its variable."""
        value = written(rebuild.machine, self.var)
        if self.is_used or self.before is not UNWRITTEN or value is UNWRITTEN:
            raise GraphBreak(
                "unsupported-result", "a token of a context variable that was set again or reset"
            )
        if id(self.var) in rebuild.contexts_set:
            raise GraphBreak("unsupported-result", "two tokens of one context variable")
        rebuild.contexts_set.add(id(self.var))
        return CallRecipe(
            ContextVar.set, (_variable(rebuild.machine, self.var), rebuild.recipe(value))
        )


def variable_origin(machine: Machine, var: ContextVar[Any]) -> Origin:
    """Where the program has the variable from; the capture holds for this variable only."""
    origin = machine.objects.origin_of(var)
    if origin is None:
        return Constant(var)
    machine.guard("IS", origin, var)
    return origin


def written(machine: Machine, var: ContextVar[Any]) -> Any:
    """What the frame has set the variable to, or UNWRITTEN."""
    return machine.context_writes.get(id(var), (var, UNWRITTEN))[1]


def context_effects(machine: Machine, rebuild: Rebuilder) -> list[Effect]:
    """Settings of the variables that are left with a value of the frame's, but for those that make a token which outlives it."""
    return [
        CallEffect(ContextVar.set, (_variable(machine, var), rebuild.recipe(value)))
        for var, value in machine.context_writes.values()
        if value is not UNWRITTEN and id(var) not in rebuild.contexts_set
    ]


def _variable(machine: Machine, var: ContextVar[Any]) -> Recipe:
    return FromOrigin(variable_origin(machine, var))
