"""What a program has told torch's own compiler through its functions: read where torch has loaded it, never imported here."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any


def _loaded(module: str, name: str) -> Any:
    """An attribute of one of torch's modules, or None where the program has not loaded it."""
    return getattr(sys.modules.get(module), name, None)


def dynamo_stance() -> str:
    """The stance that torch.compiler.set_stance has put in force."""
    name = getattr(_loaded("torch._dynamo.eval_frame", "_stance"), "stance", "default")
    return name if isinstance(name, str) else "default"


def is_allowed_in_graph(function: Any) -> bool:
    """Whether torch.compiler.allow_in_graph was called on a function of the program's."""
    return _is_among("_allowed_callable_ids", function)


def is_disallowed_in_graph(function: Any) -> bool:
    """Whether torch._dynamo.disallow_in_graph was called on a function."""
    return _is_among("_disallowed_callable_ids", function)


def _is_among(table: str, function: Any) -> bool:
    ids = getattr(_loaded("torch._dynamo.trace_rules", table), "function_ids", None)
    return isinstance(ids, set) and id(function) in ids


def substitute_of(function: Any) -> Callable[..., Any] | None:
    """What the program has registered by torch.compiler.substitute_in_graph for a function; torch's own substitutes are not used."""
    kind = _loaded("torch._dynamo.variables", "PolyfilledFunctionVariable")
    if kind is None:
        return None
    try:
        wrapped = kind._get_polyfill_handlers().get(function)
    except TypeError:  # an unhashable callable
        return None
    found = getattr(wrapped, "__torch_dynamo_polyfill__", None)
    if not isinstance(found, types.FunctionType):
        return None
    return None if (found.__module__ or "").partition(".")[0] == "torch" else found
