"""functools: the dispatch of single-dispatch functions, and caches."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.substitutes.registry import substitute_for_code
from flambeau_capture.origins import CallOf

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _inner_code(function: Any, name: str) -> types.CodeType:
    """The code of a function that is defined inside another."""
    return next(
        const
        for const in function.__code__.co_consts
        if isinstance(const, types.CodeType) and const.co_name == name
    )


@substitute_for_code(_inner_code(functools.singledispatch, "dispatch"))
def _dispatch(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """Which implementation a class gets, as long as none is registered."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    registry = cells["registry"].cell_contents
    count = CallOf(_registered, (machine.function_origin(function),))
    machine.guard("EQUALS", count, len(registry))
    return function(*args)


def _registered(dispatch: Any) -> int:
    """How many implementations a single-dispatch function has."""
    where = dispatch.__code__.co_freevars.index("registry")
    return len(dispatch.__closure__[where].cell_contents)
