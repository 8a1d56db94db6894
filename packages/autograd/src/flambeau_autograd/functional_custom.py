"""Functional forms of custom operators that write to their arguments: an operator that copies those
first, and returns the copies.

    mylib::push(Tensor(a!) x, int n) -> Tensor
       ->  flambeau::mylib_push(Tensor x, int n) -> (Tensor, Tensor)

The new operator is registered with torch, so that compiled graphs call it as they call any other;
it is made once in a process.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_prims.rules.registry import infer, rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

_LIBRARY = torch.library.Library("flambeau", "FRAGMENT")  # type: ignore[no-untyped-call]
_LOCK = fork_safe_lock()
_ALIAS = re.compile(r"\([a-z]\w*!?(?: -> [^)]*)?\)")
_SIGNATURE = re.compile(r"^[^(]*\((?P<parameters>.*)\) -> (?P<results>.*)$")
_BUILTIN = frozenset({"aten", "prim", "prims", "quantized"})


def functional_custom(op: OpOverload) -> OpOverload | None:
    """The operator for what `op` returns and writes; None for torch's own or non-tensors."""
    with _LOCK:
        return _made(op)


@cache
def _made(op: OpOverload) -> OpOverload | None:
    written = [
        a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    if op.namespace in _BUILTIN or any(str(a.type) != "Tensor" for a in written):
        return None
    if any(result.alias_info is not None for result in op._schema.returns):
        return None
    parts = _SIGNATURE.match(_ALIAS.sub("", str(op._schema)))
    if parts is None:
        return None
    returned = parts["results"].strip("()")
    results = ", ".join(([returned] if returned else []) + ["Tensor"] * len(written))
    name = f"{op._schema.name}_{op._overloadname}".replace("::", "_").removesuffix("_default")
    schema = f"{name}({parts['parameters']}) -> ({results})"
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    positions = {argument.name: index for index, argument in enumerate(op._schema.arguments)}
    names = [argument.name for argument in written]
    run = _copying(op, [positions[n] for n in names])
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(torch.ops.flambeau, name).default
    rule(made)(_rule(op, [positions[n] for n in names]))
    return made


def _copying(op: OpOverload, written: list[int]) -> Callable[..., Any]:
    """`op` on copies of the arguments that it writes to, with these as further results."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = [arg.clone() if index in written else arg for index, arg in enumerate(args)]
        returned = op(*given, **kwargs)
        results = () if returned is None else returned
        results = results if isinstance(results, (tuple, list)) else (results,)
        every = (*results, *(given[index] for index in written))
        return every[0] if len(every) == 1 else every

    return run


def _rule(op: OpOverload, written: list[int]) -> Callable[..., Any]:
    """The Specs of the results of `op`, and of the copies."""

    def specs(*args: Any, **kwargs: Any) -> Any:
        returned = infer(op, args, kwargs)
        results = () if returned is None else returned
        results = results if isinstance(results, (tuple, list)) else (results,)
        return *results, *(infer(torch.ops.aten.clone.default, (args[index],)) for index in written)

    return specs
