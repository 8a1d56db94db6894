"""Entries from their parts: a guard program, and what it leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture import torch_state
from flambeau_capture.core import core
from flambeau_capture.events import EntryInfo
from flambeau_capture.guards import program
from flambeau_capture.guards.tensor_layout import configure
from flambeau_capture.python_core import PythonEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.record import Break


def current_state() -> torch_state.UsualState:
    """This thread's torch state, to be taken before a capture begins."""
    return torch_state.UsualState.now(
        core.torch_state() if core is not None and configure() else b""
    )


def skip_entry(arguments: int, reason: Break) -> Any:
    """An entry without guards, behind all others, that runs the original function."""
    return new_entry(
        program.guard_program((), (), arguments),
        None,
        last_resort=True,
        info=EntryInfo(skipped=reason),
    )


def new_entry(
    checked: program.GuardProgram, target: Callable[..., Any] | None, **fields: Any
) -> Any:
    """An entry of the C core, or the Python twin where the program is one."""
    if core is not None and isinstance(checked, core.GuardProgram):
        return core.Entry(program=checked, target=target, **fields)
    return PythonEntry(program=checked, target=target, **fields)
