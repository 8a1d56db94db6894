"""What special methods written in Python answer, as CPython takes it: checked and converted by the
C function that asked.

`len(x)` calls `__len__`, which is interpreted; what it answers goes through `len` once more, behind
an object that just gives that answer. So the checks, their order and their messages are the
interpreter's own.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.values.classes import SYMBOLIC_NUMBERS, Proxy, python_method

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine


def _answering(name: str, owner: str = "Answer") -> type:
    """A class whose special method of this name returns what the instance was made with."""

    def method(self: Any, *args: Any) -> Any:
        return self.answer

    def __init__(self: Any, answer: Any) -> None:
        self.answer = answer

    return type(owner, (), {"__init__": __init__, "__slots__": ("answer",), name: method})


_ANSWERS = {
    name: _answering(name)
    for name in (
        "__len__",
        "__bool__",
        "__index__",
        "__int__",
        "__trunc__",
        "__float__",
        "__complex__",
        "__bytes__",
        "__hash__",
        "__iter__",
        "__repr__",
        "__str__",
        "__format__",
        "__length_hint__",
        "__fspath__",
        "__sizeof__",
        "__dir__",
    )
}


def accept(
    function: Callable[..., Any], name: str, answer: Any, *rest: Any, owner: type | None = None
) -> Any:
    """What `function(x, *rest)` makes of what `x`'s special method answered; raises what it raises,
    which may name `x`'s type, the `owner`.

    Symbolic numbers and the interpreter's own objects are taken as they are.
    """
    kind = type(answer)
    if kind in SYMBOLIC_NUMBERS or issubclass(kind, Proxy):
        return answer
    try:
        return function(_ANSWERS[name](answer), *rest)
    except TypeError:
        if owner is None:
            raise
    return function(_answering(name, owner.__name__)(answer), *rest)


def as_index(machine: Machine, value: Any) -> Any:
    """`value`, or the int that its `__index__` written in Python gives; a slice of such values, of
    their ints.
    """
    kind = type(value)
    if kind is int:
        return value
    if kind is slice:
        bounds = (value.start, value.stop, value.step)
        found = [as_index(machine, bound) for bound in bounds]
        same = all(a is b for a, b in zip(bounds, found, strict=True))
        return value if same else slice(*found)
    method = python_method(machine, kind, "__index__")
    if method is None or issubclass(kind, int):
        return value
    return accept(operator.index, "__index__", machine.call(method, (value,), {}))
