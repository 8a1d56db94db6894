"""Objects of C types that are values: decimals, dates and times; and the context of decimals.

One that existed before the call is guarded by what it pickles as. Decimals are computed in the
context of the thread: its settings are guarded, and the flags that the frame raises are raised in
each call.
"""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Any

from flambeau_capture.record import CallSideEffect, Const
from flambeau_capture.sources import CallOf

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import Recorder
    from flambeau_capture.record import SideEffect
    from flambeau_capture.sources import Source

VALUE_TYPES: frozenset[type] = frozenset(
    {
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone,
        decimal.Decimal,
    }
)  # fmt: skip
_PARTS = (bytes, int, str)


def guard_value(machine: Recorder, value: Any, source: Source) -> bool:
    """Guard what a value is; False where it holds an object of the program, as a time zone."""
    packed = _packed(value)
    if not all(type(part) in _PARTS for part in packed):
        return False
    machine.guard("EQUALS", CallOf(_packed, (source,)), packed)
    if type(value) is decimal.Decimal:
        enter_context(machine)
    return True


def _packed(value: Any) -> tuple[Any, ...]:
    if type(value) is datetime.timezone:
        return repr(value), str(value)
    parts: tuple[Any, ...] = value.__reduce_ex__(4)[1]
    return parts


class DecimalContext:
    """The thread's context while a capture computes in a copy of it."""

    def __init__(self) -> None:
        self.real: decimal.Context | None = None


def enter_context(machine: Recorder) -> None:
    """Compute decimals in a copy of the thread's context from now on."""
    state = machine.state_of(DecimalContext)
    if state.real is None:
        machine.guard("EQUALS", CallOf(_settings, ()), _settings())
        state.real = decimal.getcontext()
        own = state.real.copy()
        own.clear_flags()
        decimal.setcontext(own)


def leave_context(machine: Recorder) -> None:
    """Give the thread its context back."""
    state = machine.state_of(DecimalContext)
    if state.real is not None:
        decimal.setcontext(state.real)
        state.real = None


def _settings() -> tuple[Any, ...]:
    context = decimal.getcontext()
    traps = [signal.__name__ for signal, is_trapped in context.traps.items() if is_trapped]
    return (
        context.prec, context.rounding, context.Emin, context.Emax, context.capitals,
        context.clamp, *traps,
    )  # fmt: skip


def context_flags(machine: Recorder) -> list[SideEffect]:
    """The flags that the frame has raised in the context."""
    if machine.state_of(DecimalContext).real is None:
        return []
    raised = tuple(signal for signal, is_up in decimal.getcontext().flags.items() if is_up)
    return [CallSideEffect(_raise_flags, (Const(raised),))] if raised else []


def _raise_flags(signals: tuple[Any, ...]) -> None:
    flags = decimal.getcontext().flags
    for signal in signals:
        flags[signal] = True
