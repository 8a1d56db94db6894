"""Locks of `threading`, and context variables.

A frame that takes locks and releases them takes them before its graph runs (`entries/entry.py`). A
frame that has a graph break takes them itself, in the interpreter. A lock that the frame has made
is taken at capture.

Context variables (`contextvars`) are read under guards, and set in a table of the capture.
"""

from __future__ import annotations

import _thread
import threading
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.exit.side_effects import (
    UNWRITTEN,
    ContextToken,
    ContextWrites,
    variable_source,
    written,
)
from flambeau_capture.interpreter.exit.suspend import Locks
from flambeau_capture.interpreter.substitute_registry import (
    natively,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs

_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())


@substitute_for(_LOCK.__enter__, _LOCK.acquire, _RLOCK.__enter__, _RLOCK.acquire)
def _take(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    lock = args[0]
    locks = machine.state_of(Locks)
    source = machine.objects.source_of(lock)
    if not machine.objects.is_known(lock):
        return _take_own(lock, args[1:], kwargs)
    if not machine.strategy.takes_locks or source is None:
        raise GraphBreak("unknown-c-function", f"call of {type(lock).__qualname__}.acquire")
    if args[1:] or kwargs:
        raise GraphBreak("unknown-c-function", "a lock is taken if it is free, or for a time")
    if lock in locks.held:
        if isinstance(lock, _LOCK):
            raise GraphBreak("unknown-c-function", "a lock is taken that the frame holds")
    elif lock not in locks.sources:
        if locks.sources and not locks.held:
            # Both would be held at once, which the program avoids.
            raise GraphBreak(
                "unknown-c-function", "a second lock is taken after another was given back"
            )
        for known in locks.sources.values():
            machine.guard("NOT_ALIAS", known, source)
        locks.sources[lock] = source
    locks.held.append(lock)
    return True


@substitute_for(_LOCK.__exit__, _LOCK.release, _RLOCK.__exit__, _RLOCK.release)
def _give_back(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    lock = args[0]
    locks = machine.state_of(Locks)
    if not machine.objects.is_known(lock):
        lock.release()
        return
    if lock not in locks.held:
        raise GraphBreak("unknown-c-function", f"call of {type(lock).__qualname__}.release")
    locks.held.remove(lock)


def _take_own(lock: Any, args: Args, kwargs: Kwargs) -> bool:
    """Take a lock that the frame has made; no other thread knows it."""
    fresh = _thread.RLock() if isinstance(lock, _RLOCK) else _thread.allocate_lock()
    fresh.acquire(*args, **kwargs)  # raises what the arguments do
    blocking = args[0] if args else kwargs.get("blocking", True)
    taken: bool = lock.acquire(blocking=False)
    if not taken and blocking:
        raise GraphBreak("unknown-c-function", "the frame waits for a lock that it holds itself")
    return taken


substitute_if_new(_thread.allocate_lock, natively(_thread.allocate_lock))


# ---------------------------------------------------------------- context variables


def value_in_context(var: ContextVar[Any]) -> Any:
    """The value of a context variable, not its default; Token.MISSING where none was set."""
    return var.get(Token.MISSING)


@substitute_for(ContextVar.get)
def _get(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    var = args[0]
    value = written(machine, var)
    if value is not UNWRITTEN:
        return value
    source = CallOf(value_in_context, (variable_source(machine, var),))
    value = value_in_context(var)
    if value is not Token.MISSING:
        return machine.objects.wrap(value, source)
    machine.guard("IS", source, Token.MISSING)
    return var.get(*args[1:], **kwargs)


@substitute_for(ContextVar.set, unpacked=True)
def _set(machine: Machine, var: Any, value: Any) -> ContextToken:
    variable_source(machine, var)
    token = ContextToken(machine, var, written(machine, var))
    machine.state_of(ContextWrites).values[id(var)] = var, value
    return token


@substitute_for(ContextVar.reset, unpacked=True)
def _reset(machine: Machine, var: Any, token: Any) -> None:
    if type(token) is not ContextToken:
        raise GraphBreak("unknown-c-function", "ContextVar.reset with a token made before the call")
    if token.is_used:
        raise RuntimeError(f"{token!r} has already been used once")
    if token.var is not var:
        raise ValueError(f"{token!r} was created by a different ContextVar")
    token.is_used = True
    machine.state_of(ContextWrites).values[id(var)] = var, token.before
