"""The table of substitutes, filled by this package's other files.

A substitute takes (machine, args, kwargs).  Functions are found by identity: `SUBSTITUTES[id(function)]`.  A function that
a library makes anew each time is found by its code: `CODE_SUBSTITUTES[id(function.__code__)]` takes (machine, function, args, kwargs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.machine import Machine

    Substitute = Callable[[Machine, tuple[Any, ...], dict[str, Any]], Any]
    CodeSubstitute = Callable[[Machine, types.FunctionType, tuple[Any, ...], dict[str, Any]], Any]

SUBSTITUTES: dict[int, Substitute] = {}
CODE_SUBSTITUTES: dict[int, CodeSubstitute] = {}
_KEPT_ALIVE: list[Any] = []  # what SUBSTITUTES is keyed by, so that ids stay theirs


def substitute_for(*functions: Any) -> Callable[[Substitute], Substitute]:
    """Decorator: the function stands in for these; a second substitute for one is an error."""

    def declare(substitute: Substitute) -> Substitute:
        for function in functions:
            if id(function) in SUBSTITUTES:
                raise ValueError(f"{function!r} has two substitutes")
            SUBSTITUTES[id(function)] = substitute
            _KEPT_ALIVE.append(function)
        return substitute

    return declare


def substitute_for_code(code: types.CodeType) -> Callable[[CodeSubstitute], CodeSubstitute]:
    """Decorator: stands in for every function of this code."""

    def declare(substitute: CodeSubstitute) -> CodeSubstitute:
        if id(code) in CODE_SUBSTITUTES:
            raise ValueError(f"{code!r} has two substitutes")
        CODE_SUBSTITUTES[id(code)] = substitute
        _KEPT_ALIVE.append(code)
        return substitute

    return declare


def answering(value: Any) -> Substitute:
    """The substitute that returns this value, whatever the arguments."""
    return lambda machine, args, kwargs: value


def compiling(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`is_compiling()`: the program may now go a way of its own, which eager does not."""
    machine.told_compiling = True
    return True


def has_substitute(function: Any) -> bool:
    """Whether a substitute was declared for `function`."""
    return id(function) in SUBSTITUTES
