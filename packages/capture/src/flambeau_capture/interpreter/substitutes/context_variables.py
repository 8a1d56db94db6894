"""Context variables (`contextvars`): read under guards, set in a table of the capture."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.context_writes import (
    UNWRITTEN,
    ContextToken,
    variable_origin,
    written,
)
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.origins import CallOf
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def value_in_context(var: ContextVar[Any]) -> Any:
    """The value of a context variable, whatever its default is; Token.MISSING where none was set."""
    return var.get(Token.MISSING)


@substitute_for(ContextVar.get)
def _get(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    var = args[0]
    value = written(machine, var)
    if value is not UNWRITTEN:
        return value
    origin = CallOf(value_in_context, (variable_origin(machine, var),))
    value = value_in_context(var)
    if value is not Token.MISSING:
        return machine.objects.wrap(value, origin)
    machine.guard("IS", origin, Token.MISSING)
    return var.get(*args[1:], **kwargs)


@substitute_for(ContextVar.set)
def _set(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContextToken:
    var, value = args
    variable_origin(machine, var)
    token = ContextToken(var, written(machine, var))
    machine.context_writes[id(var)] = var, value
    return token


@substitute_for(ContextVar.reset)
def _reset(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    var, token = args
    if type(token) is not ContextToken:
        raise GraphBreak("unknown-c-function", "ContextVar.reset with a token made before the call")
    if token.is_used:
        raise RuntimeError(f"{token!r} has already been used once")
    if token.var is not var:
        raise ValueError(f"{token!r} was created by a different ContextVar")
    token.is_used = True
    machine.context_writes[id(var)] = var, token.before
