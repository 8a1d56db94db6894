"""The table of NumPy's functions that have a form of their own here, filled by the files of their subjects.

A handler takes the machine and NumPy's own arguments, and makes torch calls on the tape.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

HANDLERS: dict[int, Callable[..., Any]] = {}
"""By id of the NumPy function."""

MAKERS: set[Callable[..., Any]] = set()
"""Handlers that do for constants, too: what they make is made by the graph."""


def handler(
    *functions: Any, makes: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: handles these functions of NumPy's; a second handler of one is an error.  `makes`: it is a maker."""

    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            if id(function) in HANDLERS:
                raise ValueError(f"{function!r} has two handlers")
            HANDLERS[id(function)] = handler
            inner = getattr(function, "_implementation", None)
            if isinstance(inner, types.BuiltinFunctionType):
                HANDLERS[id(inner)] = handler  # what NumPy's own code calls past the dispatch
        if makes:
            MAKERS.add(handler)
        return handler

    return declare
