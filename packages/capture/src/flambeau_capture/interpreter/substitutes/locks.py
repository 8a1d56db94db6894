"""Locks of `threading`: a frame that takes some, and gives them back, takes them before its graph runs (`locks.py`).

A frame that has a graph break takes them itself, in the interpreter.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())


@substitute_for(_LOCK.__enter__, _LOCK.acquire, _RLOCK.__enter__, _RLOCK.acquire)
def _take(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    lock = args[0]
    origin = machine.objects.origin_of(lock)
    if not machine.manner.takes_locks or origin is None:
        raise GraphBreak("unknown-c-function", f"call of {type(lock).__qualname__}.acquire")
    if args[1:] or kwargs:
        raise GraphBreak("unknown-c-function", "a lock is taken if it is free, or for a time")
    if lock in machine.locks_held:
        if isinstance(lock, _LOCK):
            raise GraphBreak("unknown-c-function", "a lock is taken that the frame holds")
    elif lock not in machine.locks:
        if machine.locks and not machine.locks_held:
            # Both would be held at once, which the program avoids.
            raise GraphBreak(
                "unknown-c-function", "a second lock is taken after another was given back"
            )
        for known in machine.locks.values():
            machine.guard("NOT_ALIAS", known, origin)
        machine.locks[lock] = origin
    machine.locks_held.append(lock)
    return True


@substitute_for(_LOCK.__exit__, _LOCK.release, _RLOCK.__exit__, _RLOCK.release)
def _give_back(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    lock = args[0]
    if lock not in machine.locks_held:
        raise GraphBreak("unknown-c-function", f"call of {type(lock).__qualname__}.release")
    machine.locks_held.remove(lock)
