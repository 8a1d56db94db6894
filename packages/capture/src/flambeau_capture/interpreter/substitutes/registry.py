"""The table of substitutes, filled by this package's other files.

A substitute takes (machine, args, kwargs).  Functions are found by identity: `SUBSTITUTES[id(function)]`.  A function that
a library makes anew each time is found by its code: `CODE_SUBSTITUTES[id(function.__code__)]` takes (machine, function, args, kwargs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from flambeau_capture.interpreter.substitutes.arguments import checked
from flambeau_capture.reasons import GraphBreak

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
            SUBSTITUTES[id(function)] = checked(function, substitute)
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


def substitute_if_new(function: Any, substitute: Substitute) -> None:
    """Have it stand in for a function that has no substitute yet; None, what a version of a library does not have, is passed over."""
    if function is not None and id(function) not in SUBSTITUTES:
        substitute_for(function)(substitute)


def answering(value: Any) -> Substitute:
    """The substitute that returns this value, whatever the arguments."""
    return lambda machine, args, kwargs: value


def natively(function: Any) -> Substitute:
    """The substitute that calls the function as it is."""
    return lambda machine, args, kwargs: function(*args, **kwargs)


def breaking(id: str, detail: str, *, hint: str = "") -> Substitute:
    """The substitute that is a graph break, whatever the arguments."""

    def break_here(machine: Machine, args: Any, kwargs: Any) -> NoReturn:
        raise GraphBreak(id, detail, hint=hint)

    return break_here


def compiling(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`is_compiling()`: the program may now go a way of its own, which eager does not."""
    machine.told_compiling |= machine.manner.compiling
    return machine.manner.compiling
