"""Tracebacks of the exceptions that the frame raises, which name the program's functions and lines
as those of an eager run do.

An entry of a traceback holds a frame, and an interpreted frame has none. A generator that is never
begun gives one: its code has the name, file and positions of the program's function, and no frame
called it. It holds the variables whose values nothing has to compute.
"""

from __future__ import annotations

import dis
import inspect
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from flambeau_capture.interpreter.values.classes import SCALARS
from flambeau_capture.interpreter.values.lazy_values import LazyValue
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flambeau_capture.interpreter.protocols import ActiveFrame, RecipeMaker
    from flambeau_capture.record import Recipe


class _Place(NamedTuple):
    """Where an exception passed: an instruction of a function, by a stand-in for its code."""

    code: types.CodeType
    namespace: dict[str, Any]
    offset: int
    line: int


def raised_in(frame: ActiveFrame, error: BaseException) -> types.TracebackType | None:
    """The traceback of `error` as it leaves the instruction of `frame` that raised it."""
    behind = made_part(error)
    index = frame.ip - 1
    code = frame.code.code_reference()
    if code is None or (behind is not None and frame.code.names_at[index] == "RERAISE"):
        return behind
    handler = frame.code.unwinds[index] if code.co_flags & inspect.CO_GENERATOR else None
    # From 3.12 on each generator's body is covered: StopIteration becomes a RuntimeError there.
    resumable = handler is not None and frame.code.names_at[handler.target] != "CALL_INTRINSIC_1"
    variables = _variables(frame)
    stand_in = _stand_in(code, _RESUMABLE_MARK if resumable else _MARK, tuple(variables))
    offset, line = 2 * frame.code.offsets[index], frame.code.line(index)
    return _entry(_Place(stand_in, frame.globals, offset, line), variables.values(), behind)


def ends_generator(names: list[str], target: int) -> bool:
    """Whether a handler is that of a generator's whole body, which makes a StopIteration a
    RuntimeError from 3.12 on.
    """
    return names[target : target + 2] == ["CALL_INTRINSIC_1", "RERAISE"]


def _variables(frame: ActiveFrame) -> dict[str, Any]:
    """The variables that a stand-in shows: constants, and what existed before the call.

    All others would have to be computed, or kept, for a reader that they rarely have.
    """
    machine = frame.machine
    found = {}
    for name, value in zip(frame.code.local_names, frame.locals, strict=True):
        kind = type(value)
        if not name.isidentifier():
            continue
        if issubclass(kind, torch.Tensor):
            is_seen = machine.tape.input_of(value) is not None
        else:
            is_seen = kind is LazyValue or machine.objects.source_of(value) is not None
        if kind in SCALARS or (is_seen and kind is not types.CellType):
            found[name] = value
    return found


def _stand_in(code: types.CodeType, mark: object, names: tuple[str, ...]) -> types.CodeType:
    """A generator's code with the name, file and positions of `code`, and of its length: CPython's
    tracing writes beyond its array if the position table is longer. `mark` is its last constant.
    """
    size = max(len(code.co_code), len(_PLACE.co_code))
    beyond = (size - len(code.co_code)) // 2
    return _PLACE.replace(
        co_consts=(*_PLACE.co_consts, mark),
        co_code=_PLACE.co_code + _NOP * ((size - len(_PLACE.co_code)) // 2),
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_linetable=code.co_linetable + _NO_POSITION * beyond,
        co_varnames=names,
        co_nlocals=len(names),
        co_argcount=len(names),
    )


def made_part(error: BaseException) -> types.TracebackType | None:
    """The traceback entries of program frames; those in front are the interpreter's."""
    traceback = error.__traceback__
    while traceback is not None and not is_made(traceback):
        traceback = traceback.tb_next
    return traceback


def own_traceback(error: BaseException) -> types.TracebackType | None:
    """The traceback of an exception of the frame, as the program may read it."""
    traceback = error.__traceback__
    if traceback is not None and not is_made(traceback):
        raise GraphBreak("traceback", f"__traceback__ of a {type(error).__name__} is read")
    return traceback


def is_made(traceback: types.TracebackType) -> bool:
    """Whether an entry stands for an interpreted frame."""
    return any(mark in _MARKS for mark in traceback.tb_frame.f_code.co_consts[-1:])


def has_locals(traceback: types.TracebackType | None) -> bool:
    """Whether clearing a frame would end locals that an entry holds: of frames that are not ours,
    or of a generator that handled the error.
    """
    while traceback is not None:
        if traceback.tb_frame.f_code.co_consts[-1:] != (_MARK,):
            return True
        traceback = traceback.tb_next
    return False


def traceback_recipe(rebuild: RecipeMaker, traceback: types.TracebackType) -> Recipe:
    """Makes a traceback in each call: a program may cut and join tracebacks."""
    places: list[_Place] = []
    values: list[Recipe] = []
    link: types.TracebackType | None = traceback
    while link is not None:
        frame, code = link.tb_frame, link.tb_frame.f_code
        held = dict(frame.f_locals)
        if len(held) < code.co_argcount:  # cleared
            code, held = code.replace(co_varnames=(), co_nlocals=0, co_argcount=0), {}
        values += [rebuild.recipe(held[name]) for name in code.co_varnames]
        places.append(_Place(code, frame.f_globals, link.tb_lasti, link.tb_lineno))
        link = link.tb_next
    return CallRecipe(_chain, (Const(_Places(places)), *values))


class _Places:
    """Places from the outermost to the innermost; one constant of a record."""

    def __init__(self, places: list[_Place]) -> None:
        self.places = places


def _chain(found: _Places, *values: Any) -> types.TracebackType | None:
    made, end = None, len(values)
    for place in reversed(found.places):
        begin = end - place.code.co_argcount
        made = _entry(place, values[begin:end], made)
        end = begin
    return made


def _entry(
    place: _Place, values: Iterable[Any], behind: types.TracebackType | None
) -> types.TracebackType:
    begun_never = types.FunctionType(place.code, place.namespace)(*values)
    return types.TracebackType(behind, begun_never.gi_frame, place.offset, place.line)


def _place() -> Iterator[None]:
    yield


_NOP = bytes((dis.opmap["NOP"], 0))
_NO_POSITION = bytes((0xF8,))
"""The position table entry of an instruction without a position (code 15)."""
_PLACE = _place.__code__


class _Mark:
    """A constant that only stand-ins have."""


_MARK = _Mark()
_RESUMABLE_MARK = _Mark()
"""Of a generator that may have handled the exception, and go on."""
_MARKS = (_MARK, _RESUMABLE_MARK)
