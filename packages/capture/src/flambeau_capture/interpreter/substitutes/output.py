"""Printing, warnings and logging: deferred to the exit of the frame, in order.

The text is that of the time of the call. A tensor whose text names its gradient function is printed
itself, at exit; a frame that changes it after printing it breaks.
"""

from __future__ import annotations

import collections
import functools
import io
import logging
import sys
import traceback
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.formatting import (
    holds_pending,
    holds_tensor,
    is_pending,
    percent,
    to_text,
)
from flambeau_capture.interpreter.semantics.operators import truth
from flambeau_capture.interpreter.substitute_registry import breaking, substitute_for
from flambeau_capture.interpreter.tracebacks import has_locals
from flambeau_capture.interpreter.values.classes import MISSING, python_method
from flambeau_capture.interpreter.values.deferred_strings import DeferredString, needs_characters
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf, Constant
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.machine import Frame, Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs

_SETTERS = (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)
_SCALARS = (str, int, float, bool, complex, bytes, type(None))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in dict.values(value):
            yield from _tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _as_of_now(value: Any) -> Any:
    """A value whose containers later changes do not reach."""
    kind = type(value)
    if kind in (list, collections.deque):
        return kind(map(_as_of_now, value))
    if kind in (dict, collections.OrderedDict):
        return kind((key, _as_of_now(item)) for key, item in value.items())
    return tuple(map(_as_of_now, value)) if kind is tuple else value


# ---------------------------------------------------------------- print


def _pending(machine: Machine, value: Any) -> Any:
    """The text of a computed value as it is now; None for other values."""
    if not holds_pending(value):
        return None
    try:
        return to_text(machine, value, str)
    except GraphBreak:
        machine.breaks.forget()
        if is_pending(value) and not isinstance(value, torch.Tensor):
            raise
        return None


def _write_at_exit(machine: Machine, target: Any, what: str) -> None:
    """Note that a deferred call writes to an object; a break, if the frame reads it before."""
    if machine.objects.is_seen(target):
        raise GraphBreak("side-effect", f"{what} where the frame reads it")
    machine.objects.deferred.targets.append((target, what))


@substitute_for(print)
def _print(machine: Machine, args: Any, kwargs: Any) -> None:
    if any(
        not isinstance(kwargs.get(name), (str, DeferredString, types.NoneType))
        for name in ("sep", "end")
    ):
        print(sep=kwargs.get("sep"), end=kwargs.get("end"), file=io.StringIO())  # which says so
    file = kwargs.get("file")
    if file is None:
        _, file = machine.objects.globals_written.get((id(vars(sys)), "stdout"), (sys, sys.stdout))
    is_given = file is not sys.stdout
    if is_given and (
        not machine.objects.is_known(file) or python_method(machine, type(file), "write")
    ):
        _print_now(machine, file, args, kwargs)
        return
    if not callable(getattr(file, "write", None)):
        raise GraphBreak("side-effect", "print() to an object that cannot be written to")
    if not is_given and python_method(machine, type(file), "write") is not None:
        _write_at_exit(machine, sys.stdout, "print() writes")
    shown = []
    for arg in args:
        text = _pending(machine, arg)
        if text is not None:
            shown.append(text)
        elif holds_tensor(arg):
            machine.objects.deferred.tensors.extend(
                (part, part._version) for part in _tensors_in(arg)
            )
            shown.append(_as_of_now(arg))
        else:
            shown.append(to_text(machine, arg, str))
    machine.objects.deferred.add(print, tuple(shown), kwargs)


def _print_now(machine: Machine, file: Any, args: Args, kwargs: Kwargs) -> None:
    """Print to a file that the frame has made, or whose `write` is interpreted."""
    if file is None:
        return
    write = load_attr(machine, file, "write")
    for at, arg in enumerate(args):
        if at:
            machine.call(write, (" " if kwargs.get("sep") is None else kwargs["sep"],), {})
        machine.call(write, (to_text(machine, arg, str),), {})
    machine.call(write, ("\n" if kwargs.get("end") is None else kwargs["end"],), {})
    if truth(machine, kwargs.get("flush", False)):
        machine.call(load_attr(machine, file, "flush"), (), {})


# ---------------------------------------------------------------- warnings


def _record_of_warnings() -> Any:
    """The list that warnings are recorded in now (`catch_warnings(record=True)`), or None."""
    context = getattr(warnings, "_get_context", None)  # since 3.14
    if context is not None and (log := context().log) is not None:
        return log
    show = vars(warnings).get("_showwarnmsg_impl")
    record = getattr(show, "__self__", None)
    return record if isinstance(record, list) else None


def _check_shown_later(machine: Machine) -> None:
    """A break, unless the frame cannot tell a warning now from one at its exit."""
    show = warnings.showwarning
    if (id(vars(warnings)), "showwarning") in machine.objects.globals_written or not is_trusted(
        getattr(show, "__module__", None)
    ):
        raise GraphBreak("side-effect", "a warning that a function of the program is to show")
    record = _record_of_warnings()
    if record is not None:
        _write_at_exit(machine, record, "warnings are recorded")


@functools.cache
def _no_error(category: type) -> tuple[Any, str]:
    """The payload of a guard on the filters: that warnings of a category raise nothing."""

    def holds(module: Any) -> bool:
        return not any(
            action == "error" and issubclass(category, kind)
            for action, _, kind, *_ in module.filters
        )

    return holds, f"raises no {category.__name__}"


def _check_raises_nothing(machine: Machine, category: type) -> None:
    """A break if a filter may turn a warning into an error, which the frame must raise."""
    payload = _no_error(category)
    set_to_raise = any(
        function in _SETTERS and "error" in (*args, *kwargs.values())
        for function, args, kwargs in machine.objects.deferred.calls
    )
    if set_to_raise or not payload[0](warnings):
        raise GraphBreak("side-effect", f"a {category.__name__} that a filter makes an error")
    machine.guard("PREDICATE", Constant(warnings), payload)


@substitute_for(warnings.warn)
def _warn(machine: Machine, args: Any, kwargs: Any) -> None:
    named = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message, category = named["message"], named.get("category")
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    if isinstance(kind, type) and issubclass(kind, Warning):
        _check_raises_nothing(machine, kind)
    _check_shown_later(machine)
    if not isinstance(message, Warning):
        message = to_text(machine, message, str)
    prefixes = tuple(named.get("skip_file_prefixes") or ())
    level = max(named.get("stacklevel", 1), 2 if prefixes else 1)
    frame, above = _frame_at(machine.frame, level, prefixes)
    if frame is None:
        machine.objects.deferred.add(_warn_above, (message, category, above), {})
    else:
        place = functools.partial(
            _warn_at, frame.globals, frame.code.filename, frame.code.line(max(frame.ip - 1, 0))
        )
        machine.objects.deferred.add(place, (message, category), {})


def _frame_at(
    frame: Frame | None, level: int, prefixes: tuple[str, ...]
) -> tuple[Frame | None, int]:
    """The frame of a stack level; or None, and how many levels it is above the captured frame."""
    for remaining in range(level - 1, 0, -1):
        assert frame is not None
        frame = frame.parent
        while frame is not None and prefixes and frame.code.filename.startswith(prefixes):
            frame = frame.parent
        if frame is None:
            return None, remaining
    return frame, 0


def _warn_at(
    module_globals: dict[str, Any], filename: str, line: int, message: Any, category: Any
) -> None:
    """`warnings.warn` as a line of the program would have called it."""
    registry = module_globals.setdefault("__warningregistry__", {})
    module = module_globals.get("__name__") or "<string>"
    category = type(message) if isinstance(message, Warning) else category or UserWarning
    warnings.warn_explicit(message, category, filename, line, module, registry)


def _warn_above(message: Any, category: Any, levels: int) -> None:
    """`warnings.warn` about the caller of the entry, or `levels` - 1 above it."""
    warnings.warn(message, category, stacklevel=levels + 2)


@substitute_for(warnings.catch_warnings.__enter__)
def _enter_catch(machine: Machine, args: Any, kwargs: Any) -> None:
    if args[0]._record:
        raise GraphBreak("side-effect", "warnings.catch_warnings(record=True)")
    machine.objects.deferred.add(warnings.catch_warnings.__enter__, args, {})


@substitute_for(warnings.catch_warnings.__exit__)
def _exit_catch(machine: Machine, args: Any, kwargs: Any) -> None:
    machine.objects.deferred.add(warnings.catch_warnings.__exit__, (args[0], None, None, None), {})


def _deferred(function: Any) -> None:
    substitute_for(function)(
        lambda machine, args, kwargs: machine.objects.deferred.add(
            function, _as_of_now(args), kwargs
        )
    )


for _setter in _SETTERS:
    _deferred(_setter)


# ---------------------------------------------------------------- logging


@substitute_for(logging.Logger.isEnabledFor, unpacked=True)
def _is_enabled_for(machine: Machine, logger: Any, level: Any) -> bool:
    enabled = bool(logger.isEnabledFor(level))
    source = machine.objects.source_of(logger) or Constant(logger)
    machine.guard("EQUALS", CallOf(is_enabled, (source, Constant(level))), enabled)
    return enabled


def is_enabled(logger: logging.Logger, level: int) -> bool:
    """Whether a logger is enabled for a level."""
    return bool(logger.isEnabledFor(level))


@substitute_for(logging.Logger.getEffectiveLevel, unpacked=True)
def _effective_level(machine: Machine, logger: Any) -> int:
    level = int(logger.getEffectiveLevel())
    for bound in {level, level - 1} - {0}:
        _is_enabled_for(machine, logger, bound)
    return level


def _handlers(logger: Any) -> Iterator[Any]:
    """The handlers that a record of a logger reaches."""
    while logger is not None:
        yield from getattr(logger, "handlers", ())
        logger = logger.parent if getattr(logger, "propagate", False) else None


def _log(function: Any, level: int | None, machine: Machine, args: Any, kwargs: Any) -> None:
    """A call of one of a logger's methods; `level` None where it is the first argument."""
    logger, *rest = args
    if not _is_enabled_for(machine, logger, rest[0] if level is None else level):
        return
    if kwargs.get("exc_info") or kwargs.get("stack_info") or function is logging.Logger.exception:
        raise GraphBreak("traceback", f"logging.Logger.{function.__name__} with a traceback")
    for handler in _handlers(logger):
        _write_at_exit(machine, handler, "log records are kept")
    first = [rest.pop(0)] if level is None else []
    message, *values = rest
    if type(message) is not str:
        message = to_text(machine, message, str)
    if type(message) is DeferredString and values:
        raise needs_characters("the text of a tensor is filled in")
    if any(type(value) not in _SCALARS for value in values):
        given = values[0] if len(values) == 1 and isinstance(values[0], dict) else tuple(values)
        message, values = percent(machine, message, given), []
    frame, _ = _frame_at(machine.frame, kwargs.get("stacklevel", 1), ())
    if frame is None or type(logger)._log is not logging.Logger._log:
        machine.objects.deferred.add(
            function, (logger, *first, message, *values), _as_of_now(kwargs)
        )
    else:
        code = frame.code
        place = functools.partial(
            _log_at, code.filename, code.line(max(frame.ip - 1, 0)), code.name
        )
        number = first[0] if level is None else level
        extra = _as_of_now(kwargs.get("extra"))
        machine.objects.deferred.add(place, (logger, number, message, tuple(values), extra), {})


def _log_at(
    filename: str,
    line: int,
    function: str,
    logger: Any,
    level: int,
    message: str,
    args: Any,
    extra: Any,
) -> None:
    """What `logger.log` does, as a line of the program would have called it."""
    if logger.isEnabledFor(level):
        if len(args) == 1 and isinstance(args[0], dict) and args[0]:
            args = args[0]
        name = logger.name
        record = logger.makeRecord(
            name, level, filename, line, message, args, None, function, extra
        )
        logger.handle(record)


def _declare_logging() -> None:
    levels = {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
        "critical": logging.CRITICAL,
        "exception": logging.ERROR,
        "log": None,
    }
    for name, level in levels.items():
        function = getattr(logging.Logger, name)
        substitute_for(function)(functools.partial(_log, function, level))


_declare_logging()


# ---------------------------------------------------------------- tracebacks


for _function in (
    traceback.format_exc, traceback.print_exc, traceback.format_exception,
    traceback.print_exception, traceback.format_tb, traceback.print_tb, traceback.extract_tb,
    traceback.extract_stack, traceback.format_stack, traceback.print_stack, traceback.walk_tb,
    traceback.walk_stack, traceback.print_last,
):  # fmt: skip
    substitute_for(_function)(breaking("traceback", f"call of traceback.{_function.__qualname__}"))


@substitute_for(traceback.clear_frames)
def _clear_frames(machine: Machine, args: Any, kwargs: Any) -> None:
    """Clear the stand-ins of ended frames; running frames refuse."""
    trace: Any = (*args, *kwargs.values())[0] if len(args) + len(kwargs) == 1 else MISSING
    ended = trace is None or (
        type(trace) is types.TracebackType
        and not machine.objects.is_known(trace)
        and not has_locals(trace)
    )
    if not ended or not kwargs.keys() <= {"tb"}:
        machine.interpret(traceback.clear_frames, args, kwargs)
    elif trace is not None:
        traceback.clear_frames(trace)
