"""Printing, warnings and logging: deferred to the exit of the frame, in order."""

from __future__ import annotations

import functools
import logging
import warnings
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter import operations
from flambeau_capture.interpreter.substitutes.registry import has_substitute, substitute_for

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


@substitute_for(print)
def _print(machine: Machine, args: Any, kwargs: Any) -> None:
    shown = tuple(
        arg if operations.holds_tensor(arg) else operations.to_text(machine, arg, str)
        for arg in args
    )
    machine.defer(print, shown, kwargs)


@substitute_for(warnings.warn)
def _warn(machine: Machine, args: Any, kwargs: Any) -> None:
    kwargs = {name: value for name, value in kwargs.items() if name != "skip_file_prefixes"}
    machine.defer(warnings.warn, args, kwargs)


def _declare_logging() -> None:
    levels = {
        "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING, "error": logging.ERROR,
        "critical": logging.CRITICAL, "exception": logging.ERROR,
    }  # fmt: skip
    for name, level in levels.items():
        function = getattr(logging.Logger, name)
        if not has_substitute(function):
            substitute_for(function)(functools.partial(_log, function, level))


def _log(function: Any, level: int, machine: Machine, args: Any, kwargs: Any) -> None:
    if args[0].isEnabledFor(level):
        machine.defer(function, args, kwargs)


_declare_logging()
