"""What a guard kind is: a class named as the kind, in the table of them all.

Its methods are all there is to know about it:

    holds(value, guard, scope)   the reference check
    emit(builder, guard)         the same as operations of a guard program
    text(guard)                  the statement, after "L['x'] "
    found(value, guard)          what was found instead, for the reason of a recompilation

Payloads that are user objects are held weakly (`Held`), so that an entry keeps no model alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from flambeau_capture.guards.constants import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.record import Guard
    from flambeau_capture.sources import Scope, Source


class CheckEmitter(Protocol):
    """What the kinds ask of the program that is being built: `program.ProgramBuilder`."""

    def check(
        self, name: str, source: Source | None, *, number: int = 0, payload: Any = None
    ) -> None: ...
    def check_in_python(self, guard: Guard, holds: Callable[[Any], bool]) -> None: ...
    def check_together(
        self, sources: tuple[Source, ...], holds: Callable[[tuple[Any, ...]], bool]
    ) -> None: ...
    def distinct_memory(self, guard: Guard, tensors: tuple[Source, ...], written: int) -> None: ...
    def load(self, source: Source) -> int: ...
    def relation(self, guard: Guard) -> None: ...
    def symbol(self, source: Source) -> int: ...


class GuardKind:
    """Base of the kinds; only its class methods are used."""

    __slots__ = ()

    @classmethod
    def prepare(cls, payload: Any) -> Any:
        """The payload as it is kept: user objects become `Held`."""
        return payload

    @classmethod
    def holds(cls, value: Any, guard: Guard, scope: Scope) -> bool:
        raise NotImplementedError

    @classmethod
    def emit(cls, builder: CheckEmitter, guard: Guard) -> None:
        raise NotImplementedError

    @classmethod
    def text(cls, guard: Guard) -> str:
        raise NotImplementedError

    @classmethod
    def found(cls, value: Any, guard: Guard) -> str:
        return f"is {brief(value)}"


KINDS: dict[str, type[GuardKind]] = {}
"""Every kind by its name; complete once `guards.kinds` has been imported."""


def guard_kind(cls: type[GuardKind]) -> type[GuardKind]:
    """Declare a class as the kind of its name."""
    if cls.__name__ in KINDS:
        raise ValueError(f"guard kind {cls.__name__} is declared twice")
    KINDS[cls.__name__] = cls
    return cls


class Held:
    """An object a guard compares by identity: weakly held where its type allows that, so that a
    dead one never matches.
    """

    __slots__ = ("is_weak", "reference", "text")

    def __init__(self, obj: Any) -> None:
        self.text = brief(obj)
        self.reference: Any
        """A weak reference to the object when `is_weak`, else the object."""
        try:
            self.reference = weakref.ref(obj)
            self.is_weak = True
        except TypeError:
            self.reference = obj
            self.is_weak = False

    def get(self) -> Any:
        """The object, or this Held itself when it has died."""
        if not self.is_weak:
            return self.reference
        found = self.reference()
        return self if found is None else found
