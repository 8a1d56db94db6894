"""Text formats of plain data: run natively on values that hold nothing but builtin types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import concrete

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_SCALARS = frozenset({int, float, complex, str, bytes, bool, type(None)})
_HOOKS = (
    "cls",
    "default",
    "object_hook",
    "object_pairs_hook",
    "parse_float",
    "parse_int",
    "parse_constant",
)


def is_plain_data(value: Any) -> bool:
    """Whether a value is made of builtin scalars, lists, tuples and dicts."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return all(type(key) in _SCALARS and is_plain_data(item) for key, item in value.items())
    return (kind is list or kind is tuple) and all(is_plain_data(item) for item in value)


def _on_plain_data(function: Any) -> None:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        args, kwargs = concrete(args), concrete(kwargs)
        if any(kwargs.get(name) is not None for name in _HOOKS):
            return machine.interpret(function, args, kwargs)
        args = tuple(machine.whole_dict(arg) if type(arg) is dict else arg for arg in args)
        if not is_plain_data(args):
            raise GraphBreak(
                "unknown-c-function", f"json.{function.__name__} of other than plain data"
            )
        return function(*args, **kwargs)

    substitute_for(function)(substitute)


for _function in (json.dumps, json.loads):
    _on_plain_data(_function)
