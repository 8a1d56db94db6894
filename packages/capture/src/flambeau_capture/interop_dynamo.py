"""What a program has told torch's own compiler through its functions: read where torch has loaded
it, never imported here.
"""

from __future__ import annotations

import functools
import sys
import types
from dataclasses import dataclass
from typing import Any


def _loaded(module: str, name: str) -> Any:
    """An attribute of one of torch's modules, or None where the program has not loaded it."""
    return getattr(sys.modules.get(module), name, None)


def dynamo_stance() -> str:
    """The stance that torch.compiler.set_stance has put in force."""
    name = getattr(_loaded("torch._dynamo.eval_frame", "_stance"), "stance", "default")
    return name if isinstance(name, str) else "default"


@dataclass(frozen=True, slots=True)
class OverriddenFunctions:
    """What the program has told torch about functions: ids of those allowed and disallowed in
    graphs, and (original, substitute).
    """

    allowed: frozenset[int]
    disallowed: frozenset[int]
    substituted: tuple[tuple[Any, types.FunctionType], ...]
    invoke_subgraph: Any
    """The function that torch.compiler.nested_compile_region has its regions called by."""


def overridden_functions() -> OverriddenFunctions:
    """What was said so far."""
    return OverriddenFunctions(
        _ids("_allowed_callable_ids"),
        _ids("_disallowed_callable_ids"),
        _substituted(),
        _loaded("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"),
    )


def _ids(table: str) -> frozenset[int]:
    ids = getattr(_loaded("torch._dynamo.trace_rules", table), "function_ids", None)
    return frozenset(ids or ())


def _substituted() -> tuple[tuple[Any, types.FunctionType], ...]:
    """What the program has registered by torch.compiler.substitute_in_graph; the substitutes that
    torch ships are not used.
    """
    kind = _loaded("torch._dynamo.variables", "PolyfilledFunctionVariable")
    return () if kind is None else _of_the_programs(len(kind._get_polyfill_handlers()))


@functools.lru_cache(maxsize=1)
def _of_the_programs(size: int) -> tuple[tuple[Any, types.FunctionType], ...]:
    """The program's among the `size` substitutes there are: the table only grows, and is read again
    when it has.
    """
    table = _loaded(
        "torch._dynamo.variables", "PolyfilledFunctionVariable"
    )._get_polyfill_handlers()
    found = []
    for original, wrapped in list(table.items()):
        substitute = getattr(wrapped, "__torch_dynamo_polyfill__", None)
        if isinstance(substitute, types.FunctionType):
            if not (substitute.__module__ or "").startswith("torch."):
                found.append((original, substitute))
    return tuple(found)
