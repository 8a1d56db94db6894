"""functools: the dispatch of single-dispatch functions, and caches."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.enclosed import effects_so_far
from flambeau_capture.interpreter.substitutes.registry import substitute_for_code
from flambeau_capture.origins import CallOf
from flambeau_capture.reasons import GraphBreak

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


# ---------------------------------------------------------------- caches


def call_cached(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """A function behind functools.lru_cache: called past the cache, once for the same arguments in one frame.

    Only a function without effects may be: eagerly, a cached call would not repeat them.  Loggers' `warning_once`, whose cache is its
    point, is replayed at exit.
    """
    wrapped = function.__wrapped__
    if (getattr(wrapped, "__module__", None) or "").rpartition(".")[
        2
    ] == "logging" and wrapped.__name__.endswith("_once"):
        machine.defer(function, args, kwargs)
        return None
    key = _cache_key(function, args, kwargs)
    found = machine.cached_calls.get(key) if key is not None else None
    if found is not None:
        return found[1]
    before = effects_so_far(machine)
    value = machine.call(wrapped, args, kwargs)
    if effects_so_far(machine) != before:
        raise GraphBreak(
            "side-effect",
            f"{wrapped.__qualname__}, whose results are cached, changes what existed before the call",
        )
    if key is not None:
        machine.cached_calls[key] = ((function, args, kwargs), value)
    return value


def _cache_key(function: Any, args: Any, kwargs: Any) -> Any:
    """What decides whether two calls are one to the cache: scalars by type and value, other objects by identity."""
    parts = [(name, value) for name, value in enumerate(args)] + list(kwargs.items())
    return (
        id(function),
        *(
            (name, type(value), value)
            if type(value) in (int, float, str, bool, bytes, type(None))
            else (name, id(value))
            for name, value in parts
        ),
    )
