"""Symbolic arguments and results at given values of their symbols."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from flambeau_prims.graph import Value
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def at_sizes(arg: Any, env: SizeEnv, values: dict[str, int]) -> Any:
    """An argument as a rule would see it at these values of the symbols."""
    if isinstance(arg, Value):
        return at_sizes(arg.spec, env, values)
    if isinstance(arg, Spec):
        return Spec.of(
            [env.evaluate(size, values) for size in arg.shape],
            stride=[env.evaluate(step, values) for step in arg.stride],
            dtype=arg.dtype,
            device=arg.device,
            offset=env.evaluate(arg.offset, values),
        )
    if isinstance(arg, Expr):
        return env.evaluate(arg, values)
    if isinstance(arg, (tuple, list)):
        return tuple(at_sizes(item, env, values) for item in arg)
    return arg
