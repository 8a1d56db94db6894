"""Interned values: frozen dataclasses of which equal ones are one object, compared and hashed by
identity.

    class Node(metaclass=Interning): ...

    @interned
    class Pair(Node):            Pair(a, 1) is Pair(a, 1)
        left: Node
        right: int

The table holds them weakly: a value that nobody else holds goes, and its key with it. Threads may
share it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from flambeau_prims.fork_safety import fork_safe_rlock

T = TypeVar("T")


class Interning(type):
    """Metaclass: a call of the class returns the one object with these fields."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args += tuple(kwargs[name] for name in cls.__match_args__[len(args) :])  # type: ignore[attr-defined]
        key = (
            cls,
            *[
                arg if type(arg) is str or isinstance(type(arg), Interning) else _interning_key(arg)
                for arg in args
            ],
        )
        reference = _INTERNED.get(key)
        found = None if reference is None else reference()
        if found is None:
            made = super().__call__(*args)
            with _LOCK:
                reference = _INTERNED.get(key)
                found = None if reference is None else reference()
                if found is None:
                    found = made
                    _INTERNED[key] = _Reference(made, key)
        return found


class _Reference(weakref.ref[Any]):
    """A weak reference to an interned value that takes its key out of the table when the value
    dies.
    """

    __slots__ = ("key",)
    key: tuple[Any, ...]

    def __new__(cls, value: Any, key: tuple[Any, ...]) -> _Reference:
        made = super().__new__(cls, value, _forget)
        made.key = key
        return made

    def __init__(self, value: Any, key: tuple[Any, ...]) -> None:
        super().__init__(value, _forget)  # type: ignore[call-arg]


def _forget(reference: Any) -> None:
    key = reference.key
    with _LOCK:
        if _INTERNED.get(key) is reference:
            del _INTERNED[key]


_INTERNED: dict[tuple[Any, ...], _Reference] = {}
_LOCK = fork_safe_rlock()
"""Re-entrant: the garbage collector may run a finalizer that makes such a value."""

COMPARED_BY_VALUE = (str, int, float, bool, bytes, type(None))
"""Types of the scalars in keys."""


def _interning_key(value: Any) -> Any:
    """What decides whether two values are one: interned values, objects and containers by identity,
    plain scalars by type and value.

    An id in a key is safe because the interned value holds the object itself.
    """
    if type(value) is float:
        return (float, value.hex())
    if type(value) in COMPARED_BY_VALUE:
        return (type(value), value)
    if type(value) is tuple:
        return (tuple, *(_interning_key(item) for item in value))
    return (object, id(value))


@dataclass_transform(eq_default=False, frozen_default=True)
def interned(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, slotted dataclass compared by identity, whose fields are set once
    by `__init__`.
    """
    return dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)
